// Normalizer and pre-tokenizer of byte-level BPE: what happens to text before byte pairs are merged
// within its pieces.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ibid {

// The word patterns that models are trained with, in PCRE2's and their own syntax alike.
extern const char kGpt2Pattern[];
extern const char kLlama3Pattern[];
extern const char kQwen2Pattern[];
// One number character at a time: the `Digits` pre-tokenizer with individual_digits.
extern const char kDigitPattern[];
extern const char kDigitRunPattern[];

// Thread safety: const methods from any thread.
class PreTokenizer {
 public:
  PreTokenizer();
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;

  // Adds a step: each piece so far is cut into the matches of `pattern` and what lies between them.
  // `drops_matches` and `drops_gaps` leave one of the two out. Errors: InvalidArgument with PCRE2's
  // message.
  absl::Status AddSplit(const std::string& pattern, bool drops_matches = false,
                        bool drops_gaps = false);
  // Puts a space before each piece of that step that does not start with one.
  void AddPrefixSpace();
  void SetNfc() { is_nfc_ = true; }

  // The text in the normal form that the model expects. Bytes that are no UTF-8 make it stay as it
  // is. Errors: Internal.
  absl::StatusOr<std::string> Normalize(absl::string_view text) const;
  // Calls `piece` with each piece of `text`, in order. Its error ends the walk and is returned.
  // Errors: Internal (the pattern matcher met a limit).
  absl::Status ForEachPiece(absl::string_view text,
                            absl::FunctionRef<absl::Status(absl::string_view)> piece) const;

 private:
  struct Step;
  absl::Status Walk(size_t step, absl::string_view text,
                    absl::FunctionRef<absl::Status(absl::string_view)> piece) const;

  bool is_nfc_ = false;
  std::vector<std::unique_ptr<Step>> steps_;
};

}  // namespace ibid
