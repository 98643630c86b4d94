// `ibid pin` and `ibid unpin`.
#include <cstdio>
#include <map>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/cli/each_server.h"
#include "client/cli/flags.h"
#include "client/cli/named_prefix.h"
#include "client/placement.h"
#include "core/random_id.h"

namespace ibid::cli {
namespace {

using nlohmann::ordered_json;

constexpr absl::Duration kTimeout = absl::Seconds(30);

std::string PinText(uint64_t id) { return absl::StrCat(absl::Hex(id, absl::kZeroPad16)); }

// Nothing when it is none, or 0.
std::optional<uint64_t> ParsePin(const std::string& text) {
  uint64_t id = 0;
  if (!absl::SimpleHexAtoi(text, &id) || id == 0) return std::nullopt;
  return id;
}

std::string TimeText(absl::Duration left) {
  if (left == absl::InfiniteDuration()) return "until unpinned";
  return absl::StrCat(absl::FormatDuration(absl::Trunc(left, absl::Seconds(1))), " left");
}

int ListPins(const Command& command) {
  bool has_pins = false;
  const int exit_code = AskEach(
      command, [&](const std::string& address, AdminChannel& channel, ordered_json* answer) -> int {
        const auto pins = channel.ListPins(TimeoutOr(kTimeout));
        if (!pins.ok()) {
          (*answer)["error"] = std::string(pins.status().message());
          return FailServer(command, address, pins.status());
        }
        (*answer)["pins"] = ordered_json::array();
        for (const PinState& pin : *pins) {
          has_pins = true;
          ordered_json json = {{"pin", PinText(pin.id)},
                               {"namespace", DigestToHex(pin.ns.digest)},
                               {"priority", std::string(NameOf(pin.priority))},
                               {"blocks", pin.blocks},
                               {"stored_blocks", pin.stored_blocks},
                               {"host_blocks", pin.host_blocks},
                               {"disk_blocks", pin.disk_blocks}};
          if (pin.left < absl::InfiniteDuration()) {
            json["left_ms"] = absl::ToInt64Milliseconds(pin.left);
          }
          (*answer)["pins"].push_back(std::move(json));
          if (absl::GetFlag(FLAGS_json)) continue;
          absl::PrintF("%s %s %-9s %d of %d blocks stored, %d in memory, %d on disk, %s\n",
                       PinText(pin.id), address, NameOf(pin.priority), pin.stored_blocks,
                       pin.blocks, pin.host_blocks, pin.disk_blocks, TimeText(pin.left));
        }
        return kExitOk;
      });
  return exit_code == kExitOk && !has_pins ? kExitNothing : exit_code;
}

// The keys of the prefix that each server has or will have.
std::map<std::string, std::vector<BlockKey>> KeysOfServers(const NamedPrefix& prefix) {
  const std::vector<std::string> servers = absl::GetFlag(FLAGS_servers);
  Placement placement(servers, ClientOptions().placement_group_blocks);
  const std::vector<uint16_t> places = placement.Place(prefix.chain);
  std::map<std::string, std::vector<BlockKey>> keys;
  for (size_t i = 0; i < places.size(); ++i) {
    keys[servers[places[i]]].push_back(prefix.chain[i].key);
  }
  return keys;
}

int RunPin(const Command& command) {
  if (absl::GetFlag(FLAGS_list)) return ListPins(command);
  PinCall call;
  call.id = RandomId();
  if (IsGiven("pin")) {
    const auto id = ParsePin(absl::GetFlag(FLAGS_pin));
    if (!id.has_value()) return FailUsage(command, "--pin is no id: 16 hexadecimal digits, not 0");
    call.id = *id;
  }
  const auto priority = KeepPriorityOf(absl::GetFlag(FLAGS_priority));
  if (!priority.has_value() || *priority == KeepPriority::kNone) {
    return FailUsage(command, "--priority: use low, high or must_stay");
  }
  call.priority = *priority;
  call.duration = absl::GetFlag(FLAGS_for_);
  if (call.duration <= absl::ZeroDuration()) return FailUsage(command, "--for must be positive");
  int exit_code = kExitOk;
  const std::optional<NamedPrefix> prefix = ReadPrefix(command, &exit_code);
  if (!prefix.has_value()) return exit_code;
  if (prefix->chain.empty()) {
    return FailUsage(command, absl::StrCat("the prompt is shorter than one block of ",
                                           prefix->block_tokens, " tokens: nothing to pin"));
  }
  call.ns = prefix->ns;
  const auto keys = KeysOfServers(*prefix);
  const int worst = AskEach(
      command, [&](const std::string& address, AdminChannel& channel, ordered_json* answer) -> int {
        const auto of_server = keys.find(address);
        (*answer)["pin"] = PinText(call.id);
        (*answer)["blocks"] = of_server == keys.end() ? 0 : of_server->second.size();
        if (of_server == keys.end()) return kExitOk;  // no group of the prefix is its
        call.keys = of_server->second;
        const absl::StatusOr<PinReply> reply = channel.Pin(call, TimeoutOr(kTimeout));
        if (!reply.ok()) {
          (*answer)["error"] = std::string(reply.status().message());
          return FailServer(command, address, reply.status());
        }
        (*answer)["stored_blocks"] = reply->stored_blocks;
        (*answer)["survives_restart"] = reply->survives_restart;
        if (!absl::GetFlag(FLAGS_json)) {
          absl::PrintF("pin %s: server %s: %d of %d blocks stored; it %s a restart\n",
                       PinText(call.id), address, reply->stored_blocks, call.keys.size(),
                       reply->survives_restart ? "survives" : "ends with");
        }
        return kExitOk;
      });
  return worst;
}

int RunUnpin(const Command& command) {
  const auto id = ParsePin(absl::GetFlag(FLAGS_pin));
  if (!id.has_value()) return FailUsage(command, "give --pin, as `ibid pin --list` shows it");
  bool has_found = false;
  const int exit_code = AskEach(
      command, [&](const std::string& address, AdminChannel& channel, ordered_json* answer) -> int {
        const absl::Status status = channel.Unpin(*id, TimeoutOr(kTimeout));
        (*answer)["unpinned"] = status.ok();
        has_found |= status.ok();
        if (status.ok() && !absl::GetFlag(FLAGS_json)) {
          absl::PrintF("server %s: pin %s is gone\n", address, PinText(*id));
        }
        if (status.ok() || absl::IsNotFound(status)) return kExitOk;
        (*answer)["error"] = std::string(status.message());
        return FailServer(command, address, status);
      });
  return exit_code == kExitOk && !has_found ? kExitNothing : exit_code;
}

std::vector<std::string> PinFlags() {
  std::vector<std::string> flags = kPrefixFlags;
  flags.insert(flags.end(), {"pin", "priority", "for", "list"});
  return flags;
}

}  // namespace

const Command kPinCommand = {
    "pin", "keep the blocks of a prefix",
    "The blocks of the prompt's prefix stay in the store: those that are stored, and those that "
    "are "
    "published later. The\n"
    "prompt is given as for match. With --priority=must_stay they are not evicted, else only when "
    "nothing of lower priority\n"
    "can be. --for says for how long. --pin replaces a pin. --list shows the pins (exit code 1: "
    "none). If one server fails,\n"
    "the others have the pin: unpin takes it back.\n\n"
    "  ibid pin --text=\"You are a helpful assistant.\" --for=24h\n"
    "  ibid pin --list\n",
    PinFlags(), RunPin};

const Command kUnpinCommand = {"unpin",
                               "end a pin",
                               "Exit code 1 when no server has it.\n\n"
                               "  ibid unpin --pin=3f6c00d2a1b49e77\n",
                               {"pin"},
                               RunUnpin};

}  // namespace ibid::cli
