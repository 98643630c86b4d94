// Asks the AdminService of each server in turn.
#pragma once

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/flags/flag.h"
#include "client/cli/command.h"
#include "client/cli/flags.h"
#include "nlohmann/json.hpp"
#include "transport/admin_channel.h"

namespace ibid::cli {

absl::StatusOr<std::unique_ptr<AdminChannel>> ConnectAdmin(const std::string& address);

// One line on standard error; the exit code.
int FailServer(const Command& command, const std::string& address, const absl::Status& status);

// Calls `ask(address, channel, json of the answer)` for each server; the worst of the exit codes.
template <typename Ask>
int AskEach(const Command& command, const Ask& ask) {
  nlohmann::ordered_json answers = {{"servers", nlohmann::ordered_json::array()}};
  int exit_code = kExitOk;
  for (const std::string& address : absl::GetFlag(FLAGS_servers)) {
    auto channel = ConnectAdmin(address);
    if (!channel.ok()) return FailUsage(command, channel.status().message());
    nlohmann::ordered_json answer = {{"address", address}};
    exit_code = std::max(exit_code, ask(address, **channel, &answer));
    answers["servers"].push_back(std::move(answer));
  }
  if (absl::GetFlag(FLAGS_json)) std::puts(answers.dump(2).c_str());
  return exit_code;
}

}  // namespace ibid::cli
