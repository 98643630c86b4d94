// Byte-level BPE: every byte is a symbol, so every text has tokens. Made by the readers in
// tokenizer_files.h.
//
// Text -> added tokens that are spelled out in it | the rest: normal form -> pieces -> bytes ->
// merges by rank.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/tokenizer/pre_tokenizer.h"
#include "worker/tokenizer/tokenizer.h"

namespace ibid {

// A token that is found in text as it is spelled, before anything else happens to the text.
struct AddedToken {
  uint32_t id = 0;
  std::string text;
  bool is_special = false;
  bool strips_left = false, strips_right = false;  // takes the white space on that side with it
};

// What the files of a byte-level tokenizer say.
struct ByteLevelParts {
  std::vector<std::pair<std::string, uint32_t>> vocabulary;  // text in the byte alphabet, id
  std::vector<std::pair<std::string, std::string>> merges;   // by rank
  std::vector<AddedToken> added;
  PreTokenizer pre_tokenizer;
  bool ignores_merges = false;  // a piece that is a token as a whole is taken as such
  std::optional<uint32_t> bos, eos, unknown;
  std::vector<uint32_t> prefix, suffix;  // ids that adds_special puts around a text
};

// The alphabet of byte-level vocabularies: printable bytes stand for themselves, the others for
// U+0100 and up. Null where the text has a character outside it.
std::optional<std::string> BytesOfAlphabet(absl::string_view text);

class ByteLevelTokenizer final : public Tokenizer {
 public:
  // `file` is named in errors. Errors: InvalidArgument (ids out of range or used twice, merges of
  // unknown tokens).
  static absl::StatusOr<std::unique_ptr<ByteLevelTokenizer>> Make(ByteLevelParts parts,
                                                                  const std::string& file);

  absl::StatusOr<std::vector<uint32_t>> Encode(absl::string_view text,
                                               const EncodeOptions& options) const override;
  absl::string_view TokenBytes(uint32_t id) const override;
  bool is_special(uint32_t id) const override {
    return id < tokens_.size() && tokens_[id].is_special;
  }
  size_t vocab_size() const override { return tokens_.size(); }
  std::optional<uint32_t> bos_id() const override { return bos_; }
  std::optional<uint32_t> eos_id() const override { return eos_; }
  std::optional<uint32_t> IdOf(absl::string_view token) const override;

 private:
  struct Token {
    std::string bytes;
    bool is_used = false, is_special = false;
  };
  struct Found {
    size_t begin, end;
    uint32_t id;
  };

  absl::Status AddVocabulary(const ByteLevelParts& parts);
  absl::Status AddMerges(const ByteLevelParts& parts);
  absl::Status AddAddedTokens(const ByteLevelParts& parts);
  std::optional<Found> FindAdded(absl::string_view text, size_t from, bool with_special) const;
  absl::Status EncodePlain(absl::string_view text, std::vector<uint32_t>* ids) const;
  absl::Status EncodePiece(absl::string_view piece, std::vector<uint32_t>* ids) const;

  std::vector<Token> tokens_;                       // by id
  absl::flat_hash_map<std::string, uint32_t> ids_;  // by bytes; ordinary tokens
  absl::flat_hash_map<uint64_t, std::pair<uint32_t, uint32_t>>
      merges_;  // left << 32 | right -> rank, merged
  std::array<std::optional<uint32_t>, 256> byte_ids_;
  absl::flat_hash_map<std::string, AddedToken> added_;
  std::array<std::vector<size_t>, 256> added_lengths_;  // by first byte, longest first
  PreTokenizer pre_tokenizer_;
  bool ignores_merges_ = false;
  std::optional<uint32_t> bos_, eos_, unknown_;
  std::vector<uint32_t> prefix_, suffix_;
};

}  // namespace ibid
