ktune_test(schedule_test
  SOURCES schedule/ScheduleTest.cpp schedule/ProblemTest.cpp schedule/GenomeTest.cpp
  DEPS ir/schedule)
