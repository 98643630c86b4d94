#include "core/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"

namespace ibid {

absl::Status InitLog(absl::string_view program, absl::string_view level) {
  const auto parsed = spdlog::level::from_str(std::string(level));
  if (parsed == spdlog::level::off && level != "off") {
    return absl::InvalidArgumentError(
        absl::StrCat("--log_level=", level, " is not known; use debug, info, warn, error or off"));
  }
  auto logger = std::make_shared<spdlog::logger>(std::string(program),
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %n %v");
  logger->set_level(parsed);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

void log::Write(Level level, fmt::string_view format, fmt::format_args arguments) {
  const auto to = static_cast<spdlog::level::level_enum>(level);
  if (!spdlog::should_log(to)) return;
  fmt::memory_buffer line;
  fmt::vformat_to(std::back_inserter(line), format, arguments);
  spdlog::log(to, spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace ibid
