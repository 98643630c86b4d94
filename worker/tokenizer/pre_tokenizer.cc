#include "worker/tokenizer/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "worker/tokenizer/utf8.h"

namespace ibid {

const char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char kLlama3Pattern[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
                              R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char kQwen2Pattern[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
                             R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char kDigitPattern[] = R"(\p{N})";
const char kDigitRunPattern[] = R"(\p{N}+)";

namespace {

constexpr size_t kJitStackBytesMin = size_t{64} << 10;
constexpr size_t kJitStackBytesMax = size_t{8} << 20;

std::string MessageOf(int error) {
  PCRE2_UCHAR text[160];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

// What one walk over text needs beside the compiled pattern; a walk belongs to one thread.
class Matcher {
 public:
  explicit Matcher(const pcre2_code* code)
      : data_(pcre2_match_data_create_from_pattern(code, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(kJitStackBytesMin, kJitStackBytesMax, nullptr)) {
    pcre2_jit_stack_assign(context_, nullptr, stack_);
  }
  ~Matcher() {
    pcre2_match_data_free(data_);
    pcre2_match_context_free(context_);
    pcre2_jit_stack_free(stack_);
  }
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  int Match(const pcre2_code* code, absl::string_view text, size_t start) {
    return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), start, 0,
                       data_, context_);
  }
  size_t begin() const { return pcre2_get_ovector_pointer(data_)[0]; }
  size_t end() const { return pcre2_get_ovector_pointer(data_)[1]; }

 private:
  pcre2_match_data* const data_;
  pcre2_match_context* const context_;
  pcre2_jit_stack* const stack_;
};

}  // namespace

struct PreTokenizer::Step {
  ~Step() { pcre2_code_free(code); }
  pcre2_code* code = nullptr;  // null: the prefix space
  std::string pattern;
  bool drops_matches = false;
  bool drops_gaps = false;
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

absl::Status PreTokenizer::AddSplit(const std::string& pattern, bool drops_matches,
                                    bool drops_gaps) {
  auto step = std::make_unique<Step>();
  step->pattern = pattern;
  step->drops_matches = drops_matches;
  step->drops_gaps = drops_gaps;
  int error = 0;
  PCRE2_SIZE where = 0;
  step->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &error, &where, nullptr);
  if (step->code == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("pattern '", pattern, "' at ", where, ": ", MessageOf(error)));
  }
  pcre2_jit_compile(step->code, PCRE2_JIT_COMPLETE);  // without it matching is slower, not wrong
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

void PreTokenizer::AddPrefixSpace() { steps_.push_back(std::make_unique<Step>()); }

absl::StatusOr<std::string> PreTokenizer::Normalize(absl::string_view text) const {
  if (!is_nfc_) return std::string(text);
  for (absl::string_view rest = text; !rest.empty();) {
    const Utf8Step step = NextCharacter(rest);
    if (step.state != Utf8State::kWhole) return std::string(text);
    rest.remove_prefix(step.bytes);
  }
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(error);
  std::string normal;
  if (U_SUCCESS(error)) {
    icu::StringByteSink<std::string> sink(&normal);
    nfc->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink,
                       nullptr, error);
  }
  if (U_FAILURE(error)) {
    return absl::InternalError(
        absl::StrCat("normalising ", text.size(), " bytes to NFC: ", u_errorName(error)));
  }
  return normal;
}

absl::Status PreTokenizer::ForEachPiece(
    absl::string_view text, absl::FunctionRef<absl::Status(absl::string_view)> piece) const {
  if (text.empty()) return absl::OkStatus();
  return Walk(0, text, piece);
}

absl::Status PreTokenizer::Walk(size_t index, absl::string_view text,
                                absl::FunctionRef<absl::Status(absl::string_view)> piece) const {
  if (index == steps_.size()) return piece(text);
  const Step& step = *steps_[index];
  if (step.code == nullptr) {
    if (text[0] == ' ') return Walk(index + 1, text, piece);
    return Walk(index + 1, absl::StrCat(" ", text), piece);
  }
  Matcher matcher(step.code);
  size_t done = 0;  // all before it was handed on
  size_t from = 0;
  while (from < text.size()) {
    const int result = matcher.Match(step.code, text, from);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      return absl::InternalError(absl::StrCat("matching '", step.pattern, "' in a text of ",
                                              text.size(), " bytes: ", MessageOf(result)));
    }
    const size_t begin = matcher.begin(), end = matcher.end();
    if (end <= begin) {  // an empty match cuts nothing
      from = std::max(from, end) + NextCharacter(text.substr(std::max(from, end))).bytes;
      continue;
    }
    if (begin > done && !step.drops_gaps) {
      IBID_RETURN_IF_ERROR(Walk(index + 1, text.substr(done, begin - done), piece));
    }
    if (!step.drops_matches)
      IBID_RETURN_IF_ERROR(Walk(index + 1, text.substr(begin, end - begin), piece));
    done = from = end;
  }
  if (done < text.size() && !step.drops_gaps) return Walk(index + 1, text.substr(done), piece);
  return absl::OkStatus();
}

}  // namespace ibid
