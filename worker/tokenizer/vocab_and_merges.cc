// Folders with vocab.json and merges.txt, the older form: what a tokenizer.json would say is
// gathered from the files beside them and from the vocabulary itself.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "worker/tokenizer/text_file.h"
#include "worker/tokenizer/tokenizer_files.h"

namespace ibid {
namespace {

using Json = nlohmann::json;

// The JSON object in a file, or null where there is no such file.
absl::StatusOr<Json> ReadOptional(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return Json();
  IBID_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kTokenizerFileBytesMax));
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    return absl::InvalidArgumentError(absl::StrCat(path, ": is no JSON object"));
  return json;
}

// A text field, or the "content" of an object field.
std::string TokenText(const Json& json, const char* name) {
  if (!json.is_object()) return "";
  const auto found = json.find(name);
  if (found == json.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_object()) return "";
  const auto content = found->find("content");
  return content != found->end() && content->is_string() ? content->get<std::string>() : "";
}

bool IsFlagSet(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_boolean() && found->get<bool>();
}

bool LooksSpecial(absl::string_view text) {
  return absl::StartsWith(text, "<|") && absl::EndsWith(text, "|>");
}

std::optional<uint32_t> IdOfToken(const ByteLevelParts& parts, absl::string_view text) {
  for (const AddedToken& token : parts.added) {
    if (token.text == text) return token.id;
  }
  for (const auto& [token, id] : parts.vocabulary) {
    if (token == text) return id;
  }
  return std::nullopt;
}

bool HasAdded(const ByteLevelParts& parts, absl::string_view text) {
  return std::any_of(parts.added.begin(), parts.added.end(),
                     [&](const AddedToken& token) { return token.text == text; });
}

// "added_tokens_decoder" of tokenizer_config.json: {"id": {"content", "special", "lstrip",
// "rstrip"}}.
absl::Status AddFromDecoder(const Json& config, const std::string& file, ByteLevelParts* parts) {
  const auto decoder = config.find("added_tokens_decoder");
  if (decoder == config.end() || !decoder->is_object()) return absl::OkStatus();
  for (const auto& [key, entry] : decoder->items()) {
    AddedToken token;
    token.text = TokenText(*decoder, key.c_str());
    if (!absl::SimpleAtoi(key, &token.id) || !entry.is_object() || token.text.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": added_tokens_decoder: entry '", key, "' is malformed"));
    }
    token.is_special = IsFlagSet(entry, "special");
    token.strips_left = IsFlagSet(entry, "lstrip");
    token.strips_right = IsFlagSet(entry, "rstrip");
    if (!HasAdded(*parts, token.text)) parts->added.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::Status AddFromList(const Json& list, const std::string& file, ByteLevelParts* parts) {
  if (!list.is_object()) return absl::OkStatus();
  for (const auto& [text, id] : list.items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= kVocabularyMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": token '", text, "' has no id below ", kVocabularyMax));
    }
    if (!HasAdded(*parts, text))
      parts->added.push_back({id.get<uint32_t>(), text, LooksSpecial(text)});
  }
  return absl::OkStatus();
}

// Entries of several bytes that no merge makes can come from text only as they are spelled: they
// are special.
void AddUnreachable(ByteLevelParts* parts) {
  std::unordered_set<std::string> made;
  for (const auto& [left, right] : parts->merges) made.insert(left + right);
  for (const auto& [text, id] : parts->vocabulary) {
    const std::optional<std::string> bytes = BytesOfAlphabet(text);
    if ((bytes && bytes->size() == 1) || made.contains(text) || HasAdded(*parts, text)) continue;
    parts->added.push_back({id, text, /*is_special=*/true});
  }
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

}  // namespace

absl::StatusOr<ByteLevelParts> ParseVocabAndMerges(absl::string_view vocab_text,
                                                   absl::string_view merges_text,
                                                   const std::string& vocab_file,
                                                   const std::string& merges_file) {
  const Json vocab =
      Json::parse(vocab_text.begin(), vocab_text.end(), nullptr, /*allow_exceptions=*/false);
  if (!vocab.is_object())
    return absl::InvalidArgumentError(absl::StrCat(vocab_file, ": is no JSON object"));
  ByteLevelParts parts;
  for (const auto& [text, id] : vocab.items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= kVocabularyMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(vocab_file, ": token '", text, "' has no id below ", kVocabularyMax));
    }
    parts.vocabulary.emplace_back(text, id.get<uint32_t>());
  }
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(merges_text, '\n')) {
    ++number;
    if (absl::EndsWith(line, "\r")) line.remove_suffix(1);
    if (line.empty() || (number == 1 && absl::StartsWith(line, "#version"))) continue;
    const std::vector<std::string> pair = absl::StrSplit(line, ' ');
    if (pair.size() != 2 || pair[0].empty() || pair[1].empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(merges_file, ": line ", number, " is no pair of tokens"));
    }
    parts.merges.emplace_back(pair[0], pair[1]);
  }
  return parts;
}

// The patterns differ in two ways that a large vocabulary shows: whether digits may stand together
// in a token, and whether a sign may stand before letters ("(self"), as in the patterns of Llama 3
// and Qwen2.
PreTokenizerKind InferKind(const ByteLevelParts& parts) {
  constexpr size_t kLargeVocabulary = 16384, kSeveral = 16;
  if (parts.vocabulary.size() < kLargeVocabulary) return PreTokenizerKind::kGpt2;
  size_t numbers = 0, signs = 0;
  for (const auto& [text, id] : parts.vocabulary) {
    if (text.size() >= 2 && std::all_of(text.begin(), text.end(), IsDigit)) ++numbers;
    if (text.size() >= 3 && absl::StrContains("(._-/", text[0]) &&
        std::all_of(text.begin() + 1, text.end(), IsLetter)) {
      ++signs;
    }
  }
  if (signs >= kSeveral)
    return numbers >= kSeveral ? PreTokenizerKind::kLlama3 : PreTokenizerKind::kQwen2;
  return numbers >= kSeveral ? PreTokenizerKind::kGpt2 : PreTokenizerKind::kSmolLm;
}

absl::Status AddFolderSettings(const std::string& directory, PreTokenizerKind kind,
                               ByteLevelParts* parts) {
  const std::string config_file = absl::StrCat(directory, "/tokenizer_config.json");
  const std::string added_file = absl::StrCat(directory, "/added_tokens.json");
  IBID_ASSIGN_OR_RETURN(const Json config, ReadOptional(config_file));
  IBID_ASSIGN_OR_RETURN(const Json added, ReadOptional(added_file));
  if (config.is_object()) IBID_RETURN_IF_ERROR(AddFromDecoder(config, config_file, parts));
  IBID_RETURN_IF_ERROR(AddFromList(added, added_file, parts));
  AddUnreachable(parts);
  if (kind == PreTokenizerKind::kInfer) {
    const std::string tokenizer_class = TokenText(config, "tokenizer_class");
    kind =
        absl::StartsWith(tokenizer_class, "Qwen2") ? PreTokenizerKind::kQwen2 : InferKind(*parts);
  }
  PreTokenizer& pre_tokenizer = parts->pre_tokenizer;
  switch (kind) {
    case PreTokenizerKind::kQwen2:
      pre_tokenizer.SetNfc();
      return pre_tokenizer.AddSplit(kQwen2Pattern);
    case PreTokenizerKind::kLlama3:
      parts->ignores_merges = true;
      return pre_tokenizer.AddSplit(kLlama3Pattern);
    case PreTokenizerKind::kSmolLm:
      IBID_RETURN_IF_ERROR(pre_tokenizer.AddSplit(kDigitPattern));
      return pre_tokenizer.AddSplit(kGpt2Pattern);
    case PreTokenizerKind::kGpt2:
    case PreTokenizerKind::kInfer:
      break;
  }
  return pre_tokenizer.AddSplit(kGpt2Pattern);
}

absl::Status AddSequenceEnds(const std::string& directory, ByteLevelParts* parts) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    IBID_ASSIGN_OR_RETURN(const Json json, ReadOptional(absl::StrCat(directory, "/", name)));
    if (!parts->bos) parts->bos = IdOfToken(*parts, TokenText(json, "bos_token"));
    if (!parts->eos) parts->eos = IdOfToken(*parts, TokenText(json, "eos_token"));
    if (json.is_object() && IsFlagSet(json, "add_bos_token") && parts->bos &&
        parts->prefix.empty()) {
      parts->prefix = {*parts->bos};
    }
  }
  if (!parts->eos) parts->eos = IdOfToken(*parts, "<|endoftext|>");
  return absl::OkStatus();
}

}  // namespace ibid
