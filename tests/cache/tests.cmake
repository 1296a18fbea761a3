ktune_test(cache_format_test SOURCES cache/PlanTest.cpp cache/RecordTest.cpp DEPS cache/format)
ktune_test(cache_store_test SOURCES cache/StoreTest.cpp DEPS cache/store)
# Its children are killed and its disks are full.
ktune_test(cache_store_fault_test SOURCES cache/StoreFaultTest.cpp DEPS cache/store)
