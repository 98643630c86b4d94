// `ibid drain`, `ibid flush` and `ibid verify`: what is asked of each server in turn.
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/cli/each_server.h"
#include "client/cli/flags.h"
#include "client/cli/format.h"

namespace ibid::cli {
namespace {

using nlohmann::ordered_json;

constexpr absl::Duration kKeepTimeout = absl::Seconds(60);
constexpr absl::Duration kUndrainTimeout = absl::Seconds(5);
constexpr absl::Duration kVerifyTimeout = absl::Hours(24);

using KeepMethod = absl::StatusOr<KeepReply> (AdminChannel::*)(absl::Duration);

int RunKeep(const Command& command, KeepMethod method, const char* what) {
  return AskEach(
      command, [&](const std::string& address, AdminChannel& channel, ordered_json* answer) -> int {
        const absl::StatusOr<KeepReply> reply = (channel.*method)(TimeoutOr(kKeepTimeout));
        if (!reply.ok()) {
          (*answer)["error"] = std::string(reply.status().message());
          return FailServer(command, address, reply.status());
        }
        (*answer)["written_blocks"] = reply->written_blocks;
        (*answer)["remaining_blocks"] = reply->remaining_blocks;
        if (!absl::GetFlag(FLAGS_json)) {
          absl::PrintF("server %s %s: %d blocks written to disk, %d only in memory\n", address,
                       what, reply->written_blocks, reply->remaining_blocks);
        }
        return kExitOk;
      });
}

int RunUndrain(const Command& command) {
  return AskEach(
      command, [&](const std::string& address, AdminChannel& channel, ordered_json* answer) -> int {
        const absl::Status status = channel.Undrain(TimeoutOr(kUndrainTimeout));
        if (!status.ok()) {
          (*answer)["error"] = std::string(status.message());
          return FailServer(command, address, status);
        }
        (*answer)["is_draining"] = false;
        if (!absl::GetFlag(FLAGS_json)) absl::PrintF("server %s takes blocks again\n", address);
        return kExitOk;
      });
}

int RunDrain(const Command& command) {
  return absl::GetFlag(FLAGS_undo) ? RunUndrain(command)
                                   : RunKeep(command, &AdminChannel::Drain, "drained");
}

int RunFlush(const Command& command) { return RunKeep(command, &AdminChannel::Flush, "flushed"); }

// A bar that redraws its line on a terminal; else a line each tenth.
class VerifyProgressLine {
 public:
  explicit VerifyProgressLine(std::string address) : address_(std::move(address)) {}

  void Show(const VerifyState& state) {
    const uint64_t all = std::max(state.copies, state.checked_copies);
    const std::string text =
        absl::StrFormat("server %s %s %s, %d of %d copies, %s, %d bad", address_,
                        Bar(state.checked_copies, all), Share(state.checked_copies, all),
                        state.checked_copies, all, Bytes(state.checked_bytes), state.bad_copies());
    if (is_terminal_) {
      absl::PrintF("\r\x1b[K%s%s", text, state.is_done ? "\n" : "");
    } else if (const uint64_t tenth = all == 0 ? 10 : state.checked_copies * 10 / all;
               tenth > shown_tenth_ || state.is_done) {
      shown_tenth_ = tenth;
      absl::PrintF("%s\n", text);
    }
    std::fflush(stdout);
  }

 private:
  const std::string address_;
  const bool is_terminal_ = isatty(STDOUT_FILENO) == 1;
  uint64_t shown_tenth_ = 0;
};

int RunVerify(const Command& command) {
  const uint64_t pace = uint64_t{absl::GetFlag(FLAGS_mib_per_second)} << 20;
  return AskEach(
      command, [&](const std::string& address, AdminChannel& channel, ordered_json* answer) -> int {
        VerifyProgressLine line(address);
        const absl::StatusOr<VerifyState> end =
            channel.Verify(pace, TimeoutOr(kVerifyTimeout), [&](const VerifyState& state) {
              if (!absl::GetFlag(FLAGS_json)) line.Show(state);
              return true;
            });
        if (!end.ok()) {
          (*answer)["error"] = std::string(end.status().message());
          return FailServer(command, address, end.status());
        }
        (*answer)["checked_copies"] = end->checked_copies;
        (*answer)["checked_bytes"] = end->checked_bytes;
        (*answer)["damaged_host_copies"] = end->damaged_host_copies;
        (*answer)["damaged_disk_copies"] = end->damaged_disk_copies;
        (*answer)["damaged_gpu_copies"] = end->damaged_gpu_copies;
        (*answer)["unreadable_disk_copies"] = end->unreadable_disk_copies;
        (*answer)["unreadable_gpu_copies"] = end->unreadable_gpu_copies;
        (*answer)["kept_blocks"] = end->kept_blocks;
        return end->bad_copies() == 0 ? kExitOk : kExitFailed;
      });
}

}  // namespace

const Command kDrainCommand = {
    "drain",
    "prepare servers for their end",
    "The servers take no new sessions and no new blocks, say that they are not healthy, and write "
    "what only their memory\n"
    "has to the disk tier, within --timeout (60s). What remains in memory only is said. Clients "
    "with a session go on\n"
    "reading. With --undo they are healthy again and take sessions and blocks.\n\n"
    "  ibid drain --servers=10.0.0.1:7070 --timeout=5m\n"
    "  ibid drain --servers=10.0.0.1:7070 --undo\n",
    {"undo"},
    RunDrain};

const Command kFlushCommand = {"flush",
                               "write to disk what only memory has",
                               "As drain, but the servers serve on.\n\n  ibid flush --timeout=5m\n",
                               {},
                               RunFlush};

const Command kVerifyCommand = {
    "verify",
    "read all blocks again and remove damaged copies",
    "Each server reads every copy of every block again, in every tier, and removes those that do "
    "not match their checksum;\n"
    "a block without a sound copy is dropped. Exit code 4 when there were any. Interrupting it "
    "ends "
    "it on the server.\n\n"
    "  ibid verify --mib_per_second=500\n",
    {"mib_per_second"},
    RunVerify};

}  // namespace ibid::cli
