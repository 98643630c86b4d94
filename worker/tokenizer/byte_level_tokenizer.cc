#include "worker/tokenizer/byte_level_tokenizer.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <functional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limit.h"
#include "worker/tokenizer/pair_merger.h"
#include "worker/tokenizer/utf8.h"

namespace ibid {
namespace {

// Bytes that stand for themselves: printable and no space, in Latin-1.
bool IsPrintable(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) ||
         (byte >= 0xae && byte <= 0xff);
}

// From code point to byte; the others follow U+0100 in their order.
const absl::flat_hash_map<uint32_t, uint8_t>& Alphabet() {
  static const auto* const alphabet = [] {
    auto* map = new absl::flat_hash_map<uint32_t, uint8_t>;
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      (*map)[IsPrintable(byte) ? byte : next++] = static_cast<uint8_t>(byte);
    }
    return map;
  }();
  return *alphabet;
}

// The start of the white space that ends at `end`, no further back than `limit`.
size_t StripLeft(absl::string_view text, size_t limit, size_t end) {
  while (end > limit) {
    size_t begin = end - 1;
    while (begin > limit && (static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) --begin;
    const Utf8Step step = NextCharacter(text.substr(begin, end - begin));
    if (step.state != Utf8State::kWhole || !u_isUWhiteSpace(static_cast<UChar32>(step.code_point)))
      break;
    end = begin;
  }
  return end;
}

size_t StripRight(absl::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Utf8Step step = NextCharacter(text.substr(begin));
    if (step.state != Utf8State::kWhole || !u_isUWhiteSpace(static_cast<UChar32>(step.code_point)))
      break;
    begin += step.bytes;
  }
  return begin;
}

uint64_t PairKey(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

}  // namespace

std::optional<std::string> BytesOfAlphabet(absl::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const Utf8Step step = NextCharacter(text);
    const auto found = Alphabet().find(step.code_point);
    if (step.state != Utf8State::kWhole || found == Alphabet().end()) return std::nullopt;
    bytes.push_back(static_cast<char>(found->second));
    text.remove_prefix(step.bytes);
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<ByteLevelTokenizer>> ByteLevelTokenizer::Make(
    ByteLevelParts parts, const std::string& file) {
  auto tokenizer = std::make_unique<ByteLevelTokenizer>();
  absl::Status status = tokenizer->AddVocabulary(parts);
  if (status.ok()) status = tokenizer->AddMerges(parts);
  if (status.ok()) status = tokenizer->AddAddedTokens(parts);
  const size_t size = tokenizer->tokens_.size();
  for (const std::optional<uint32_t>& id : {parts.bos, parts.eos, parts.unknown}) {
    if (status.ok() && id && *id >= size)
      status = absl::InvalidArgumentError(absl::StrCat("id ", *id, " is no token"));
  }
  if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat(file, ": ", status.message()));
  tokenizer->pre_tokenizer_ = std::move(parts.pre_tokenizer);
  tokenizer->ignores_merges_ = parts.ignores_merges;
  tokenizer->bos_ = parts.bos;
  tokenizer->eos_ = parts.eos;
  tokenizer->unknown_ = parts.unknown;
  tokenizer->prefix_ = std::move(parts.prefix);
  tokenizer->suffix_ = std::move(parts.suffix);
  return tokenizer;
}

absl::Status ByteLevelTokenizer::AddVocabulary(const ByteLevelParts& parts) {
  if (parts.vocabulary.empty()) return absl::InvalidArgumentError("the vocabulary is empty");
  ids_.reserve(parts.vocabulary.size());
  for (const auto& [text, id] : parts.vocabulary) {
    if (id >= kVocabularyMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("token '", text, "' has id ", id, "; kVocabularyMax is ", kVocabularyMax));
    }
    if (id >= tokens_.size()) tokens_.resize(id + 1);
    if (tokens_[id].is_used)
      return absl::InvalidArgumentError(
          absl::StrCat("id ", id, " has two tokens, one '", text, "'"));
    tokens_[id].is_used = true;
    std::optional<std::string> bytes = BytesOfAlphabet(text);
    if (!bytes) {  // no text becomes it but as an added token
      tokens_[id].bytes = text;
      continue;
    }
    tokens_[id].bytes = *bytes;
    if (bytes->size() == 1) byte_ids_[static_cast<uint8_t>((*bytes)[0])] = id;
    ids_.emplace(*std::move(bytes), id);
  }
  return absl::OkStatus();
}

absl::Status ByteLevelTokenizer::AddMerges(const ByteLevelParts& parts) {
  merges_.reserve(parts.merges.size());
  for (size_t rank = 0; rank < parts.merges.size(); ++rank) {
    const auto& [left, right] = parts.merges[rank];
    const auto fail = [&, rank = rank](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat("merge ", rank, " ('",
                                                     parts.merges[rank].first, "' '",
                                                     parts.merges[rank].second, "'): ", what));
    };
    const std::optional<std::string> left_bytes = BytesOfAlphabet(left),
                                     right_bytes = BytesOfAlphabet(right);
    if (!left_bytes || !right_bytes) return fail("has a character outside the byte alphabet");
    const auto left_id = ids_.find(*left_bytes), right_id = ids_.find(*right_bytes);
    const auto merged = ids_.find(*left_bytes + *right_bytes);
    if (left_id == ids_.end() || right_id == ids_.end()) return fail("one of them is no token");
    if (merged == ids_.end()) return fail("together they are no token");
    merges_.emplace(PairKey(left_id->second, right_id->second),
                    std::pair(static_cast<uint32_t>(rank), merged->second));
  }
  return absl::OkStatus();
}

absl::Status ByteLevelTokenizer::AddAddedTokens(const ByteLevelParts& parts) {
  for (const AddedToken& token : parts.added) {
    if (token.text.empty())
      return absl::InvalidArgumentError(absl::StrCat("added token ", token.id, " is empty"));
    if (token.id >= kVocabularyMax) {
      return absl::InvalidArgumentError(absl::StrCat("added token '", token.text, "' has id ",
                                                     token.id, "; kVocabularyMax is ",
                                                     kVocabularyMax));
    }
    if (token.id >= tokens_.size()) tokens_.resize(token.id + 1);
    tokens_[token.id] = {token.text, true, token.is_special};
    if (!added_.emplace(token.text, token).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("added token '", token.text, "' is there twice"));
    }
    std::vector<size_t>& lengths = added_lengths_[static_cast<uint8_t>(token.text[0])];
    lengths.push_back(token.text.size());
    std::sort(lengths.begin(), lengths.end(), std::greater<>());
    lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  }
  return absl::OkStatus();
}

std::optional<ByteLevelTokenizer::Found> ByteLevelTokenizer::FindAdded(absl::string_view text,
                                                                       size_t from,
                                                                       bool with_special) const {
  if (added_.empty()) return std::nullopt;
  for (size_t at = from; at < text.size(); ++at) {
    for (const size_t length : added_lengths_[static_cast<uint8_t>(text[at])]) {
      if (length > text.size() - at) continue;
      const auto found = added_.find(text.substr(at, length));
      if (found == added_.end()) continue;
      const AddedToken& token = found->second;
      if (token.is_special && !with_special) continue;
      return Found{token.strips_left ? StripLeft(text, from, at) : at,
                   token.strips_right ? StripRight(text, at + length) : at + length, token.id};
    }
  }
  return std::nullopt;
}

absl::StatusOr<std::vector<uint32_t>> ByteLevelTokenizer::Encode(
    absl::string_view text, const EncodeOptions& options) const {
  if (text.size() > kEncodeTextBytesMax) {
    return LimitReached(absl::StrCat("a text of ", text.size(), " bytes"), "kEncodeTextBytesMax",
                        kEncodeTextBytesMax);
  }
  std::vector<uint32_t> ids;
  if (options.adds_special) ids = prefix_;
  size_t from = 0;
  while (const std::optional<Found> found = FindAdded(text, from, options.parses_special)) {
    IBID_RETURN_IF_ERROR(EncodePlain(text.substr(from, found->begin - from), &ids));
    ids.push_back(found->id);
    from = found->end;
  }
  IBID_RETURN_IF_ERROR(EncodePlain(text.substr(from), &ids));
  if (options.adds_special) ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  return ids;
}

absl::Status ByteLevelTokenizer::EncodePlain(absl::string_view text,
                                             std::vector<uint32_t>* ids) const {
  if (text.empty()) return absl::OkStatus();
  IBID_ASSIGN_OR_RETURN(const std::string normal, pre_tokenizer_.Normalize(text));
  return pre_tokenizer_.ForEachPiece(
      normal, [&](absl::string_view piece) { return EncodePiece(piece, ids); });
}

absl::Status ByteLevelTokenizer::EncodePiece(absl::string_view piece,
                                             std::vector<uint32_t>* ids) const {
  if (ignores_merges_) {
    if (const auto whole = ids_.find(piece); whole != ids_.end()) {
      ids->push_back(whole->second);
      return absl::OkStatus();
    }
  }
  std::vector<uint32_t> symbols;
  symbols.reserve(piece.size());
  for (const char c : piece) {
    const std::optional<uint32_t> id = byte_ids_[static_cast<uint8_t>(c)];
    if (!id && !unknown_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "byte 0x", absl::Hex(static_cast<uint8_t>(c), absl::kZeroPad2), " has no token"));
    }
    symbols.push_back(id ? *id : *unknown_);
  }
  MergePairs<uint32_t>(&symbols,
                       [this](uint32_t left, uint32_t right) -> std::optional<Merge<uint32_t>> {
                         const auto found = merges_.find(PairKey(left, right));
                         if (found == merges_.end()) return std::nullopt;
                         return Merge<uint32_t>{found->second.first, found->second.second};
                       });
  ids->insert(ids->end(), symbols.begin(), symbols.end());
  return absl::OkStatus();
}

absl::string_view ByteLevelTokenizer::TokenBytes(uint32_t id) const {
  return id < tokens_.size() ? absl::string_view(tokens_[id].bytes) : absl::string_view();
}

std::optional<uint32_t> ByteLevelTokenizer::IdOf(absl::string_view token) const {
  if (const auto found = added_.find(token); found != added_.end()) return found->second.id;
  if (const auto found = ids_.find(token); found != ids_.end()) return found->second;
  return std::nullopt;
}

}  // namespace ibid
