// The flags of `ibid`. Which command takes which: its Command.
#pragma once

#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/time/time.h"

namespace ibid::cli {

// A flag that may be given several times; each adds a value. REQUIRES: one flag of this type.
struct RepeatedText {
  std::vector<std::string> values;
};

}  // namespace ibid::cli

ABSL_DECLARE_FLAG(std::vector<std::string>, servers);
ABSL_DECLARE_FLAG(std::string, worker);
ABSL_DECLARE_FLAG(absl::Duration, timeout);
ABSL_DECLARE_FLAG(bool, json);
ABSL_DECLARE_FLAG(std::string, log_level);
ABSL_DECLARE_FLAG(std::string, transport);
ABSL_DECLARE_FLAG(std::string, tls_ca);
ABSL_DECLARE_FLAG(std::string, tls_cert);
ABSL_DECLARE_FLAG(std::string, tls_key);

ABSL_DECLARE_FLAG(std::string, namespace_);
ABSL_DECLARE_FLAG(std::string, adapter);
ABSL_DECLARE_FLAG(std::string, salt);
ABSL_DECLARE_FLAG(std::string, keys);
ABSL_DECLARE_FLAG(std::string, tokens);
ABSL_DECLARE_FLAG(std::string, text);
ABSL_DECLARE_FLAG(uint32_t, block_tokens);

ABSL_DECLARE_FLAG(bool, everything);
ABSL_DECLARE_FLAG(bool, yes);

ABSL_DECLARE_FLAG(bool, undo);
ABSL_DECLARE_FLAG(uint32_t, mib_per_second);

ABSL_DECLARE_FLAG(std::string, priority);
ABSL_DECLARE_FLAG(std::string, pin);
ABSL_DECLARE_FLAG(bool, list);

ABSL_DECLARE_FLAG(std::string, tenant);
ABSL_DECLARE_FLAG(bool, default_);
ABSL_DECLARE_FLAG(std::string, publish_bytes_per_second_max);
ABSL_DECLARE_FLAG(std::string, host_bytes_max);
ABSL_DECLARE_FLAG(std::string, disk_bytes_max);
ABSL_DECLARE_FLAG(std::string, gpu_bytes_max);
ABSL_DECLARE_FLAG(bool, reload);

ABSL_DECLARE_FLAG(bool, snapshot);
ABSL_DECLARE_FLAG(absl::Duration, for_);
ABSL_DECLARE_FLAG(uint64_t, count);

ABSL_DECLARE_FLAG(std::string, prompt);
ABSL_DECLARE_FLAG(std::string, prompt_file);
ABSL_DECLARE_FLAG(std::string, prefill_worker);
ABSL_DECLARE_FLAG(uint32_t, max_tokens);
ABSL_DECLARE_FLAG(double, temperature);
ABSL_DECLARE_FLAG(uint32_t, top_k);
ABSL_DECLARE_FLAG(double, top_p);
ABSL_DECLARE_FLAG(uint64_t, seed);
ABSL_DECLARE_FLAG(ibid::cli::RepeatedText, stop);
ABSL_DECLARE_FLAG(std::string, store);
ABSL_DECLARE_FLAG(bool, no_worker_cache);

ABSL_DECLARE_FLAG(std::vector<std::string>, policies);
ABSL_DECLARE_FLAG(std::vector<std::string>, capacities);
ABSL_DECLARE_FLAG(bool, sweep);
ABSL_DECLARE_FLAG(uint64_t, bytes_per_token);
ABSL_DECLARE_FLAG(std::string, layout);
ABSL_DECLARE_FLAG(std::string, plot);
ABSL_DECLARE_FLAG(uint32_t, split_tokens);
ABSL_DECLARE_FLAG(uint32_t, servers_count);
