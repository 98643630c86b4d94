#include "transport/peer.h"

#include <gtest/gtest.h>

namespace ibid {
namespace {

// 44: who is not of this machine must not look so.
TEST(PeerTest, OnlyLoopbackAddressesAndUnixSocketsAreOfThisMachine) {
  for (const char* peer : {"ipv4:127.0.0.1:1234", "ipv4:127.8.9.1:5", "ipv6:[::1]:1234",
                           "ipv6:%5B::1%5D:1234", "ipv6:[::ffff:127.0.0.1]:9", "unix:/run/ibid"}) {
    EXPECT_TRUE(IsLoopbackPeer(peer)) << peer;
  }
  for (const char* peer : {"", "ipv4:10.0.0.1:1234", "ipv4:127.0.0.1", "ipv4:127.evil.example:80",
                           "ipv4:1127.0.0.1:1", "ipv6:[::2]:1", "ipv6:[2001:db8::1]:1",
                           "ipv6:[::ffff:10.0.0.1]:9", "ipv6:[::1", "127.0.0.1:1", "fd:3"}) {
    EXPECT_FALSE(IsLoopbackPeer(peer)) << peer;
  }
}

}  // namespace
}  // namespace ibid
