ktune_test(op_test
  SOURCES op/BucketsTest.cpp op/CanonicalTest.cpp op/DTypeTest.cpp op/GraphJsonTest.cpp op/GraphTest.cpp op/OperatorDocTest.cpp
          op/ReferenceTest.cpp
  DEPS ir/op)
