// One line an event, by spdlog: IBID_LOG(info, "served {} blocks", n). Levels: debug, info, warn,
// error.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <chrono>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ibid {

// Log lines go to standard error as `2026-01-31T12:00:00.123 info ibid-server message`. Called
// once, at the start of main. Errors: InvalidArgument when `level` is none of debug, info, warn,
// error, off.
absl::Status InitLog(absl::string_view program, absl::string_view level);

namespace log {

// As spdlog counts them.
enum Level : int { debug = 1, info = 2, warn = 3, error = 4 };

// Formats and writes one line, if `level` is on. In log.cc, so that no caller compiles spdlog.
void Write(Level level, fmt::string_view format, fmt::format_args arguments);

// {fmt} does not know Abseil's string_view where that is not the standard's.
template <typename T>
decltype(auto) Loggable(const T& value) {
  if constexpr (std::is_same_v<T, absl::string_view>) {
    return fmt::string_view(value.data(), value.size());
  } else {
    return (value);
  }
}

// The format is checked against the arguments by the compiler.
template <typename... Arguments>
void Line(Level level,
          fmt::format_string<decltype(Loggable(std::declval<const Arguments&>()))...> format,
          const Arguments&... arguments) {
  Write(level, format, fmt::make_format_args(Loggable(arguments)...));
}

}  // namespace log
}  // namespace ibid

#define IBID_LOG(level, ...) ::ibid::log::Line(::ibid::log::level, __VA_ARGS__)

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
      IBID_LOG(level, __VA_ARGS__);                                                   \
    }                                                                                 \
  } while (false)
