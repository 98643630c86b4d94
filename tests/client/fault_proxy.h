// FaultProxy: a TCP proxy on loopback between a client and a server under test, that fails in the
// ways networks and peers do. It knows nothing of the protocol inside.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "core/mutex.h"

namespace ibid {

// Thread safety: thread-safe. One thread moves all bytes; it ends with the object.
class FaultProxy {
 public:
  // Forwards to 127.0.0.1:target_port; 0: to nowhere, every connection stays open and is never
  // answered.
  explicit FaultProxy(int target_port = 0);
  ~FaultProxy();
  FaultProxy(const FaultProxy&) = delete;
  FaultProxy& operator=(const FaultProxy&) = delete;

  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  // Where later connections go: a server that came back on another port.
  void SetTarget(int target_port) { target_port_ = target_port; }
  // Bytes stop in both directions, connections stay open: a black hole. False: they flow again,
  // none lost.
  void Stall(bool is_stalled) { is_stalled_ = is_stalled; }
  // Only what comes from the server stops.
  void StallAnswers(bool is_stalled) { are_answers_stalled_ = is_stalled; }
  // New connections are closed at once.
  void Refuse(bool is_refusing) { is_refusing_ = is_refusing; }
  // Resets all connections now, as the death of a host does.
  void CutAll() { cuts_requested_++; }
  // The connection on which the server sends the last of the next `bytes` bytes ends behind it,
  // without a reset. 0: off.
  void CutAfter(uint64_t bytes) { cut_after_ = bytes; }
  // The lowest bit of the byte that the server sends `bytes` from now is flipped, and of every
  // `every`-th after it (0: of no other). Both 0: off.
  void FlipAfter(uint64_t bytes, uint64_t every = 0) {
    flip_every_ = every;
    flip_after_ = bytes;
  }

  uint64_t bytes_from_server() const { return bytes_from_server_; }
  uint64_t connections_count() const { return connections_count_; }

 private:
  struct Pipe {  // one direction of one connection
    int from = -1, to = -1;
    std::string held;  // read, not yet written
    bool is_from_server = false;
  };
  struct Connection {
    Pipe up, down;
    bool is_ending = false;  // once `down.held` is sent
    bool is_broken = false;
  };

  void Run();
  void Accept();
  void Move(Connection* connection, Pipe* pipe);
  size_t CountUntilCut(size_t count);
  void Flip(char* bytes, size_t count);
  void ResetAll();
  static void Close(const Connection& connection);

  int listen_fd_ = -1;
  int port_ = 0;
  std::atomic<int> target_port_;
  std::atomic<bool> are_answers_stalled_{false};
  std::atomic<bool> is_stalled_{false}, is_refusing_{false}, is_stopping_{false};
  std::atomic<uint64_t> cuts_requested_{0}, cut_after_{0}, flip_after_{0}, flip_every_{0};
  std::atomic<uint64_t> bytes_from_server_{0}, connections_count_{0};
  uint64_t cuts_done_ = 0;               // owned by the thread
  std::vector<Connection> connections_;  // owned by the thread
  std::thread thread_;
};

}  // namespace ibid
