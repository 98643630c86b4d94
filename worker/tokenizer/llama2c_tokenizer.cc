// The tokenizer of llama2.c: SentencePiece's BPE in a small binary form. Pieces have scores instead
// of merge ranks; the pair whose union has the highest score is merged first. Text gets a space in
// front; what has no piece becomes bytes.
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/limit.h"
#include "worker/tokenizer/pair_merger.h"
#include "worker/tokenizer/tokenizer_files.h"
#include "worker/tokenizer/utf8.h"

namespace ibid {
namespace {

// Ids 0 to 2 are unknown, beginning and end; the bytes follow.
constexpr uint32_t kBos = 1, kEos = 2, kFirstByte = 3;
constexpr size_t kPieceBytesMax = 512;

class Llama2cTokenizer final : public Tokenizer {
 public:
  // Pieces come in the order of their ids.
  void AddPiece(const std::string& bytes, float score) {
    const uint32_t id = static_cast<uint32_t>(pieces_.size());
    if (id < kFirstByte) {
      pieces_.push_back({"", score});
    } else if (id <
               kFirstByte + 256) {  // spelled <0x0A>; a piece of the same character may come later
      pieces_.push_back({std::string(1, static_cast<char>(id - kFirstByte)), score});
    } else {
      ids_.emplace(bytes, id);
      pieces_.push_back({bytes, score});
    }
  }

  absl::StatusOr<std::vector<uint32_t>> Encode(absl::string_view text,
                                               const EncodeOptions& options) const override {
    if (text.size() > kEncodeTextBytesMax) {
      return LimitReached(absl::StrCat("a text of ", text.size(), " bytes"), "kEncodeTextBytesMax",
                          kEncodeTextBytesMax);
    }
    std::vector<uint32_t> ids;
    const std::string spaced = text.empty() ? std::string() : absl::StrCat(" ", text);
    for (absl::string_view rest = spaced; !rest.empty();) {
      const size_t bytes = NextCharacter(rest).bytes;
      if (const auto found = ids_.find(rest.substr(0, bytes)); found != ids_.end()) {
        ids.push_back(found->second);
      } else {
        for (size_t i = 0; i < bytes; ++i)
          ids.push_back(kFirstByte + static_cast<uint8_t>(rest[i]));
      }
      rest.remove_prefix(bytes);
    }
    std::string joined;
    MergePairs<float>(&ids, [&](uint32_t left, uint32_t right) -> std::optional<Merge<float>> {
      joined.assign(pieces_[left].bytes).append(pieces_[right].bytes);
      const auto found = ids_.find(joined);
      if (found == ids_.end()) return std::nullopt;
      return Merge<float>{-pieces_[found->second].score, found->second};
    });
    if (options.adds_special) ids.insert(ids.begin(), kBos);
    return ids;
  }

  absl::string_view TokenBytes(uint32_t id) const override {
    return id < pieces_.size() ? absl::string_view(pieces_[id].bytes) : absl::string_view();
  }
  bool is_special(uint32_t id) const override { return id < kFirstByte; }
  size_t vocab_size() const override { return pieces_.size(); }
  std::optional<uint32_t> bos_id() const override { return kBos; }
  std::optional<uint32_t> eos_id() const override { return kEos; }
  std::optional<uint32_t> IdOf(absl::string_view token) const override {
    const auto found = ids_.find(token);
    if (found == ids_.end()) return std::nullopt;
    return found->second;
  }

 private:
  struct Piece {
    std::string bytes;
    float score;
  };
  std::vector<Piece> pieces_;  // by id
  absl::flat_hash_map<std::string, uint32_t> ids_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> ParseLlama2cTokenizer(absl::string_view bytes,
                                                                 const std::string& file) {
  const auto read_u32 = [&](uint32_t* value) {
    if (bytes.size() < 4) return false;
    *value = 0;
    for (int i = 3; i >= 0; --i) *value = *value << 8 | static_cast<uint8_t>(bytes[i]);
    bytes.remove_prefix(4);
    return true;
  };
  auto tokenizer = std::make_unique<Llama2cTokenizer>();
  uint32_t longest = 0;
  if (!read_u32(&longest))
    return absl::InvalidArgumentError(absl::StrCat(file, ": shorter than its header"));
  while (!bytes.empty()) {
    const size_t id = tokenizer->vocab_size();
    uint32_t score = 0, length = 0;
    if (!read_u32(&score) || !read_u32(&length) || length > kPieceBytesMax ||
        length > bytes.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": token ", id, " is cut short or too long"));
    }
    if (!std::isfinite(std::bit_cast<float>(score))) {
      return absl::InvalidArgumentError(absl::StrCat(file, ": token ", id, " has no finite score"));
    }
    if (id >= kVocabularyMax)
      return absl::InvalidArgumentError(absl::StrCat(file, ": more tokens than ", kVocabularyMax));
    tokenizer->AddPiece(std::string(bytes.substr(0, length)), std::bit_cast<float>(score));
    bytes.remove_prefix(length);
  }
  if (tokenizer->vocab_size() < kFirstByte + 256) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": has ", tokenizer->vocab_size(),
                                                   " tokens; the bytes alone are ",
                                                   kFirstByte + 256));
  }
  return tokenizer;
}

}  // namespace ibid
