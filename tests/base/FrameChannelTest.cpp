#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "base/Subprocess.h"

namespace ktune {
namespace {

struct Ends {
  FrameChannel left;
  FrameChannel right;
};

Ends socketEnds() {
  int pair[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  return {FrameChannel(UniqueFd(pair[0])), FrameChannel(UniqueFd(pair[1]))};
}

// LEFT writes, RIGHT reads.
Ends pipeEnds() {
  int pair[2];
  EXPECT_EQ(::pipe(pair), 0);
  return {FrameChannel(UniqueFd(pair[1])), FrameChannel(UniqueFd(pair[0]))};
}

std::string pattern(size_t n) {
  std::string bytes(n, '\0');
  uint32_t state = 1;
  for (char& c : bytes) c = static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
  return bytes;
}

void writeRaw(const FrameChannel& channel, std::string_view bytes) {
  ASSERT_EQ(::write(channel.fd(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
}

TEST(FrameChannel, RoundTripsEverySize) {
  for (const bool socket : {true, false}) {
    Ends ends = socket ? socketEnds() : pipeEnds();
    const size_t kSizes[] = {0, 1, 3, 4, 5, 4095, 4096, 65536, 1000003, (size_t{1} << 20) + 1, size_t{64} << 20};
    std::thread sender([&] {
      for (const size_t n : kSizes) {
        const Status status = ends.left.send(pattern(n), Deadline::after(60));
        EXPECT_TRUE(status.isOk()) << status.toString();
      }
    });
    for (const size_t n : kSizes) {
      const Result<std::string> frame = ends.right.receive(Deadline::after(60));
      if (!frame) {
        ADD_FAILURE() << n << ": " << frame.error().toString();
        break;
      }
      EXPECT_TRUE(*frame == pattern(n)) << n;
    }
    sender.join();
  }
}

TEST(FrameChannel, TheLengthIsLittleEndian) {
  Ends ends = socketEnds();
  ASSERT_TRUE(ends.left.send("abc").isOk());
  char bytes[8];
  ASSERT_EQ(::read(ends.right.fd(), bytes, sizeof bytes), 7);
  EXPECT_EQ(std::string_view(bytes, 7), std::string_view("\x03\0\0\0abc", 7));
}

TEST(FrameChannel, TheOtherEndIsGone) {
  struct Case {
    std::string_view before;  // What arrives first.
    const char* message;
  };
  const Case kTable[] = {{"", "closed"},
                         {std::string_view("\x03\0", 2), "closed within a frame"},
                         {std::string_view("\x03\0\0\0", 4), "closed within a frame"},
                         {std::string_view("\x03\0\0\0ab", 6), "closed within a frame"}};
  for (const bool socket : {true, false}) {
    for (const Case& c : kTable) {
      Ends ends = socket ? socketEnds() : pipeEnds();
      writeRaw(ends.left, c.before);
      ends.left.close();
      const Result<std::string> frame = ends.right.receive(Deadline::after(60));
      ASSERT_FALSE(frame);
      EXPECT_EQ(frame.error().code(), StatusCode::kUnavailable);
      EXPECT_EQ(frame.error().message(), c.message);
    }
  }
}

TEST(FrameChannel, SendingToAClosedEndRaisesNoSignal) {
  for (const bool socket : {true, false}) {
    Ends ends = socket ? socketEnds() : pipeEnds();
    ends.right.close();
    // SIGPIPE is at its default and would end the test program.
    EXPECT_EQ(ends.left.send("x", Deadline::after(60)).code(), StatusCode::kUnavailable);
    EXPECT_EQ(ends.left.send("x", Deadline::after(60)).code(), StatusCode::kUnavailable);
  }
}

TEST(FrameChannel, APeerThatDiesWithUnreadDataIsClosed) {
  Ends ends = socketEnds();
  ASSERT_TRUE(ends.left.send("never read").isOk());
  ends.right.close();  // Linux resets the connection.
  EXPECT_EQ(ends.left.receive(Deadline::after(60)).error().toString(), "unavailable: closed");
}

TEST(FrameChannel, FramesBeforeTheEndAreDelivered) {
  Ends ends = socketEnds();
  ASSERT_TRUE(ends.left.send("last words").isOk());
  ends.left.close();
  EXPECT_EQ(ends.right.receive(Deadline::after(60)).value(), "last words");
  EXPECT_EQ(ends.right.receive(Deadline::after(60)).error().toString(), "unavailable: closed");
}

TEST(FrameChannel, OversizedFramesAreRefusedOnBothSides) {
  Ends ends = socketEnds();
  const std::string_view huge("x", size_t{FrameChannel::kMaxFrameBytes} + 1);  // Refused before a byte is read.
  EXPECT_EQ(ends.left.send(huge).code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(ends.left.send("still fine").isOk());
  EXPECT_EQ(ends.right.receive().value(), "still fine");
  writeRaw(ends.left, std::string_view("\x01\0\0\x40", 4));  // 2^30 + 1
  EXPECT_EQ(ends.right.receive(Deadline::after(60)).error().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(ends.right.receive(Deadline::after(60)).error().code(), StatusCode::kUnavailable);
}

TEST(FrameChannel, ReceiveKeepsItsDeadline) {
  for (const bool socket : {true, false}) {
    Ends ends = socket ? socketEnds() : pipeEnds();
    const double start = monotonicSeconds();
    EXPECT_EQ(ends.right.receive(Deadline::after(0.05)).error().code(), StatusCode::kDeadlineExceeded);
    const double took = monotonicSeconds() - start;
    EXPECT_GE(took, 0.05);
    EXPECT_LT(took, 10);
  }
}

TEST(FrameChannel, WhatIsThereIsDeliveredAfterTheDeadline) {
  Ends ends = socketEnds();
  ASSERT_TRUE(ends.left.send("here", Deadline::after(0)).isOk());
  EXPECT_EQ(ends.right.receive(Deadline::after(0)).value(), "here");
}

TEST(FrameChannel, ReceiveGoesOnWhereADeadlineStoppedIt) {
  Ends ends = socketEnds();
  const std::string bytes("\x05\0\0\0hello\x02\0\0\0ok", 15);
  std::vector<std::string> frames;
  for (const char c : bytes) {
    writeRaw(ends.left, std::string_view(&c, 1));
    Result<std::string> frame = ends.right.receive(Deadline::after(0));
    if (frame) {
      frames.push_back(*frame);
    } else {
      EXPECT_EQ(frame.error().code(), StatusCode::kDeadlineExceeded);
    }
  }
  EXPECT_EQ(frames, (std::vector<std::string>{"hello", "ok"}));
}

TEST(FrameChannel, ACutFrameClosesTheSender) {
  for (const bool socket : {true, false}) {
    Ends ends = socket ? socketEnds() : pipeEnds();
    const double start = monotonicSeconds();
    EXPECT_EQ(ends.left.send(std::string(16 << 20, 'x'), Deadline::after(0.05)).code(), StatusCode::kDeadlineExceeded);
    EXPECT_LT(monotonicSeconds() - start, 10);
    EXPECT_EQ(ends.left.send("x").code(), StatusCode::kUnavailable);
    EXPECT_EQ(ends.right.receive(Deadline::after(60)).error().message(), "closed within a frame");
  }
}

TEST(FrameChannel, AnAnnouncedFrameCostsNoMemoryUntilItArrives) {
  Ends ends = socketEnds();
  writeRaw(ends.left, std::string_view("\0\0\0\x40", 4));  // 1 GiB is announced, nothing sent.
  EXPECT_EQ(ends.right.receive(Deadline::after(0.01)).error().code(), StatusCode::kDeadlineExceeded);
  ends.left.close();
  EXPECT_EQ(ends.right.receive(Deadline::after(60)).error().message(), "closed within a frame");
}

TEST(FrameChannel, WithoutADescriptor) {
  FrameChannel none;
  EXPECT_EQ(none.send("x").code(), StatusCode::kUnavailable);
  EXPECT_EQ(none.receive().error().code(), StatusCode::kUnavailable);
}

TEST(UniqueFd, OwnsItsDescriptor) {
  int pair[2];
  ASSERT_EQ(::pipe(pair), 0);
  UniqueFd a(pair[0]);
  UniqueFd b(pair[1]);
  UniqueFd moved = std::move(a);
  EXPECT_EQ(moved.get(), pair[0]);
  moved = std::move(b);  // Closes what it held.
  EXPECT_EQ(moved.get(), pair[1]);
  char c = 0;
  EXPECT_EQ(::read(pair[0], &c, 1), -1);
  EXPECT_EQ(moved.release(), pair[1]);
  EXPECT_FALSE(moved.valid());
  EXPECT_EQ(::close(pair[1]), 0);
}

}  // namespace
}  // namespace ktune
