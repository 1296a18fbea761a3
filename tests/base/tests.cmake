ktune_test(base_test
  SOURCES base/Main.cpp base/StatusTest.cpp base/HashTest.cpp base/BytesTest.cpp base/LogTest.cpp base/SettingsTest.cpp
          base/FileTest.cpp base/SystemTest.cpp base/JsonTest.cpp base/FrameChannelTest.cpp base/SubprocessTest.cpp
  DEPS base)
