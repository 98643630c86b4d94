// Tokenizer turns text into token ids and back: byte-level BPE in the files of Hugging Face models.
//
// Thread safety: const methods from any thread. Text is UTF-8; bytes that are no UTF-8 are encoded
// as bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ibid {

// The longest text of one Encode, in bytes.
inline constexpr size_t kEncodeTextBytesMax = size_t{64} << 20;
// The largest tokenizer file that is read, in bytes, and the most ids of a vocabulary.
inline constexpr size_t kTokenizerFileBytesMax = size_t{256} << 20;
inline constexpr size_t kVocabularyMax = size_t{1} << 22;

// How text is cut into pieces before byte pairs are merged, for folders that do not say it.
enum class PreTokenizerKind { kInfer, kGpt2, kQwen2, kLlama3, kSmolLm };

// Accepts infer, gpt2, qwen2, llama3, smollm. Errors: InvalidArgument.
absl::StatusOr<PreTokenizerKind> ParsePreTokenizerKind(absl::string_view name);

struct TokenizerOptions {
  // Used with vocab.json and merges.txt only; a tokenizer.json says it itself. kInfer looks at
  // tokenizer_config.json, config.json and added_tokens.json, and takes GPT-2's when they say
  // nothing.
  PreTokenizerKind pre_tokenizer = PreTokenizerKind::kInfer;
};

struct EncodeOptions {
  // Special tokens that are spelled out in the text become their ids; else they are ordinary text.
  // Leave it off for text of users that must not speak as the system.
  bool parses_special = true;
  // Puts the beginning-of-sequence token first, if there is one and the tokenizer's files ask for
  // it.
  bool adds_special = false;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Reads tokenizer.json, else vocab.json and merges.txt, else tok512.bin (the form of llama2.c),
  // from `directory`. Errors: NotFound (none of them), InvalidArgument that names the file and the
  // reason.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& directory,
                                                         const TokenizerOptions& options = {});

  // Errors: ResourceExhausted (kEncodeTextBytesMax), InvalidArgument (a byte has no token in this
  // vocabulary).
  virtual absl::StatusOr<std::vector<uint32_t>> Encode(absl::string_view text,
                                                       const EncodeOptions& options = {}) const = 0;
  // The bytes of `ids` one after another, made UTF-8 by U+FFFD for what is none. Ids outside the
  // vocabulary have no bytes.
  std::string Decode(const std::vector<uint32_t>& ids, bool skips_special = false) const;
  // The bytes of one token, which may be a part of a character. Empty for an id outside the
  // vocabulary.
  virtual absl::string_view TokenBytes(uint32_t id) const = 0;
  virtual bool is_special(uint32_t id) const = 0;
  // One more than the largest id.
  virtual size_t vocab_size() const = 0;
  // What the tokenizer's files call so; a model's config.json may say more.
  virtual std::optional<uint32_t> bos_id() const = 0;
  virtual std::optional<uint32_t> eos_id() const = 0;
  // The id of a token by its text, special tokens included.
  virtual std::optional<uint32_t> IdOf(absl::string_view token) const = 0;
};

// Text of tokens that come one at a time: holds back the bytes of a character until it is whole.
class StreamDecoder {
 public:
  // `tokenizer` must outlive the decoder.
  explicit StreamDecoder(const Tokenizer* tokenizer, bool skips_special = true)
      : tokenizer_(tokenizer), skips_special_(skips_special) {}

  // The text that became certain with `id`; valid UTF-8, may be empty. The pieces of all Adds and
  // of Finish, one after another, are Decode of all ids.
  std::string Add(uint32_t id);
  // What was held back: U+FFFD if a character is incomplete. The decoder starts again.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  bool skips_special_;
  std::string held_;
};

}  // namespace ibid
