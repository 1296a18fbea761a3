ktune_test(search_test
  SOURCES search/StatisticsTest.cpp search/ArchiveTest.cpp search/ProposerTest.cpp search/RaceTest.cpp
          search/TunerTest.cpp
  DEPS search)
