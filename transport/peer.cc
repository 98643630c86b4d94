#include "transport/peer.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace ibid {
namespace {

// "127.a.b.c:port", whole: a name that only starts so is no address of this machine.
bool IsLoopbackIpv4(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || !absl::ConsumePrefix(&address, "127.")) return false;
  return address.find_first_not_of("0123456789.:") == absl::string_view::npos;
}

}  // namespace

bool IsLoopbackPeer(absl::string_view peer) {
  if (absl::StartsWith(peer, "unix:")) return true;
  if (absl::ConsumePrefix(&peer, "ipv4:")) return IsLoopbackIpv4(peer);
  if (!absl::ConsumePrefix(&peer, "ipv6:")) return false;
  // Some versions of gRPC escape the brackets.
  if (absl::ConsumePrefix(&peer, "[::1]:") || absl::ConsumePrefix(&peer, "%5B::1%5D:")) return true;
  return (absl::ConsumePrefix(&peer, "[::ffff:") || absl::ConsumePrefix(&peer, "%5B::ffff:")) &&
         absl::StartsWith(peer, "127.");
}

}  // namespace ibid
