// gRPC's own log lines.
#pragma once

namespace ibid {

// From now on they are ibid's, at level debug: what they say of connections comes back as statuses
// too. Called once, in main.
void TakeOverGrpcLog();

}  // namespace ibid
