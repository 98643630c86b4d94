// One line an event, by spdlog: IBID_LOG(info, "served {} blocks", n). Levels: debug, info, warn,
// error.
#pragma once

#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

template <>
struct fmt::formatter<absl::string_view> : fmt::formatter<fmt::string_view> {
  template <typename Context>
  auto format(absl::string_view text, Context& context) const {
    return fmt::formatter<fmt::string_view>::format({text.data(), text.size()}, context);
  }
};

namespace ibid {

// Log lines go to standard error as `2026-01-31T12:00:00.123 info ibid-server message`. Called
// once, at the start of main. Errors: InvalidArgument when `level` is none of debug, info, warn,
// error, off.
absl::Status InitLog(absl::string_view program, absl::string_view level);

}  // namespace ibid

#define IBID_LOG(level, ...) ::spdlog::level(__VA_ARGS__)

// The same, at most once in each `period` seconds at this place: for events that a broken peer
// could cause without end.
#define IBID_LOG_EVERY(period, level, ...)                                            \
  do {                                                                                \
    static std::atomic<int64_t> ibid_next_log{0};                                     \
    const int64_t ibid_now = std::chrono::duration_cast<std::chrono::seconds>(        \
                                 std::chrono::steady_clock::now().time_since_epoch()) \
                                 .count();                                            \
    int64_t ibid_next = ibid_next_log.load(std::memory_order_relaxed);                \
    if (ibid_now >= ibid_next &&                                                      \
        ibid_next_log.compare_exchange_strong(ibid_next, ibid_now + (period))) {      \
      ::spdlog::level(__VA_ARGS__);                                                   \
    }                                                                                 \
  } while (false)
