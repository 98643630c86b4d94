// IBID_CHECK(condition) << "context": ends the program with file, line and text when a programmer's
// assumption is false. For errors that input or the outside can cause, return an absl::Status
// instead.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace ibid::check_internal {

class Failure {
 public:
  Failure(const char* file, int line, const char* condition) {
    text_ << file << ":" << line << ": CHECK failed: " << condition << " ";
  }
  [[noreturn]] ~Failure() {
    std::fprintf(stderr, "%s\n", text_.str().c_str());
    std::abort();
  }
  std::ostream& stream() { return text_; }

 private:
  std::ostringstream text_;
};

struct Voidify {
  void operator&(std::ostream&) {}
};

}  // namespace ibid::check_internal

#define IBID_CHECK(condition)                       \
  (condition) ? (void)0                             \
              : ::ibid::check_internal::Voidify() & \
                    ::ibid::check_internal::Failure(__FILE__, __LINE__, #condition).stream()

// `return` the error of `expression` (an absl::Status) to the caller.
#define IBID_RETURN_IF_ERROR(expression)                                                \
  do {                                                                                  \
    if (absl::Status ibid_status = (expression); !ibid_status.ok()) return ibid_status; \
  } while (false)

#define IBID_CONCAT_INNER(a, b) a##b
#define IBID_CONCAT(a, b) IBID_CONCAT_INNER(a, b)

// IBID_ASSIGN_OR_RETURN(auto x, F()): x = the value of F(), or return F()'s error.
#define IBID_ASSIGN_OR_RETURN(declaration, expression)              \
  auto IBID_CONCAT(ibid_result_, __LINE__) = (expression);          \
  if (!IBID_CONCAT(ibid_result_, __LINE__).ok())                    \
    return std::move(IBID_CONCAT(ibid_result_, __LINE__)).status(); \
  declaration = *std::move(IBID_CONCAT(ibid_result_, __LINE__))
