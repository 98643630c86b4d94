// tokenizer.json of Hugging Face tokenizers, as far as byte-level BPE goes. What is not understood
// is refused by name: a setting that was skipped would give other tokens, silently.
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "worker/tokenizer/tokenizer_files.h"

namespace ibid {
namespace {

using Json = nlohmann::json;

const Json* Find(const Json& json, const char* name) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(name);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

bool IsTrue(const Json& json, const char* name, bool absent = false) {
  const Json* value = Find(json, name);
  return value == nullptr ? absent : value->is_boolean() && value->get<bool>();
}

std::string Text(const Json& json, const char* name) {
  const Json* value = Find(json, name);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

class Reader {
 public:
  explicit Reader(const std::string& file) : file_(file) {}

  absl::Status Read(const Json& json, ByteLevelParts* parts);

 private:
  absl::Status Fail(absl::string_view where, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(file_, ": ", where, ": ", what));
  }
  absl::Status ReadModel(const Json& model, ByteLevelParts* parts);
  absl::Status ReadMerges(const Json& merges, ByteLevelParts* parts);
  absl::Status ReadAdded(const Json& added, ByteLevelParts* parts);
  absl::Status ReadNormalizer(const Json& normalizer, bool is_inner, ByteLevelParts* parts);
  absl::Status ReadPreTokenizer(const Json& step, bool is_inner, ByteLevelParts* parts);
  absl::Status ReadSplit(const Json& step, ByteLevelParts* parts);
  absl::Status ReadPostProcessor(const Json& step, bool is_inner, ByteLevelParts* parts);
  absl::Status ReadTemplate(const Json& step, ByteLevelParts* parts);

  const std::string& file_;
  bool is_byte_level_ = false;
};

absl::Status Reader::Read(const Json& json, ByteLevelParts* parts) {
  const Json* model = Find(json, "model");
  if (model == nullptr) return Fail("model", "is missing");
  IBID_RETURN_IF_ERROR(ReadModel(*model, parts));
  if (const Json* added = Find(json, "added_tokens"))
    IBID_RETURN_IF_ERROR(ReadAdded(*added, parts));
  if (const Json* normalizer = Find(json, "normalizer")) {
    IBID_RETURN_IF_ERROR(ReadNormalizer(*normalizer, false, parts));
  }
  if (const Json* step = Find(json, "pre_tokenizer"))
    IBID_RETURN_IF_ERROR(ReadPreTokenizer(*step, false, parts));
  if (!is_byte_level_)
    return Fail("pre_tokenizer", "has no ByteLevel step; only byte-level BPE is supported");
  const Json* decoder = Find(json, "decoder");
  if (decoder != nullptr && Text(*decoder, "type") != "ByteLevel") {
    return Fail("decoder",
                absl::StrCat("type '", Text(*decoder, "type"), "' is not supported, ByteLevel is"));
  }
  if (const Json* step = Find(json, "post_processor"))
    return ReadPostProcessor(*step, false, parts);
  return absl::OkStatus();
}

absl::Status Reader::ReadModel(const Json& model, ByteLevelParts* parts) {
  const std::string type = Text(model, "type");
  if (type != "BPE" && !(type.empty() && Find(model, "merges") != nullptr)) {
    return Fail("model", absl::StrCat("type '", type, "' is not supported, BPE is"));
  }
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!Text(model, name).empty()) return Fail("model", absl::StrCat(name, " is not supported"));
  }
  if (Find(model, "dropout") != nullptr) return Fail("model", "dropout is not supported");
  if (IsTrue(model, "byte_fallback")) return Fail("model", "byte_fallback is not supported");
  parts->ignores_merges = IsTrue(model, "ignore_merges");
  const Json* vocab = Find(model, "vocab");
  if (vocab == nullptr || !vocab->is_object()) return Fail("model.vocab", "is no object");
  parts->vocabulary.reserve(vocab->size());
  for (const auto& [text, id] : vocab->items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= kVocabularyMax) {
      return Fail("model.vocab",
                  absl::StrCat("token '", text, "' has no id below ", kVocabularyMax));
    }
    parts->vocabulary.emplace_back(text, id.get<uint32_t>());
  }
  if (const std::string unknown = Text(model, "unk_token"); !unknown.empty()) {
    const Json* id = Find(*vocab, unknown.c_str());
    if (id == nullptr) return Fail("model.unk_token", absl::StrCat("'", unknown, "' is no token"));
    parts->unknown = id->get<uint32_t>();
  }
  const Json* merges = Find(model, "merges");
  if (merges == nullptr || !merges->is_array()) return Fail("model.merges", "is no list");
  return ReadMerges(*merges, parts);
}

// Each is "left right" or ["left", "right"].
absl::Status Reader::ReadMerges(const Json& merges, ByteLevelParts* parts) {
  parts->merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const Json& merge = merges[i];
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      parts->merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    const std::string text = merge.is_string() ? merge.get<std::string>() : std::string();
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      return Fail("model.merges", absl::StrCat("entry ", i, " is no pair of tokens"));
    }
    parts->merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return absl::OkStatus();
}

absl::Status Reader::ReadAdded(const Json& added, ByteLevelParts* parts) {
  if (!added.is_array()) return Fail("added_tokens", "is no list");
  for (size_t i = 0; i < added.size(); ++i) {
    const Json* id = Find(added[i], "id");
    const Json* content = Find(added[i], "content");
    if (id == nullptr || !id->is_number_unsigned() || id->get<uint64_t>() >= kVocabularyMax ||
        content == nullptr || !content->is_string()) {
      return Fail("added_tokens",
                  absl::StrCat("entry ", i, " has no content or no id below ", kVocabularyMax));
    }
    if (IsTrue(added[i], "single_word")) {
      return Fail("added_tokens", absl::StrCat("entry ", i, ": single_word is not supported"));
    }
    parts->added.push_back({id->get<uint32_t>(), content->get<std::string>(),
                            IsTrue(added[i], "special"), IsTrue(added[i], "lstrip"),
                            IsTrue(added[i], "rstrip")});
  }
  return absl::OkStatus();
}

absl::Status Reader::ReadNormalizer(const Json& normalizer, bool is_inner, ByteLevelParts* parts) {
  const std::string type = Text(normalizer, "type");
  if (type == "NFC") {
    parts->pre_tokenizer.SetNfc();
    return absl::OkStatus();
  }
  const Json* list = Find(normalizer, "normalizers");
  if (type != "Sequence" || is_inner || list == nullptr || !list->is_array()) {
    return Fail("normalizer", absl::StrCat("type '", type, "' is not supported, NFC is"));
  }
  for (const Json& inner : *list) IBID_RETURN_IF_ERROR(ReadNormalizer(inner, true, parts));
  return absl::OkStatus();
}

absl::Status Reader::ReadPreTokenizer(const Json& step, bool is_inner, ByteLevelParts* parts) {
  const std::string type = Text(step, "type");
  PreTokenizer& pre_tokenizer = parts->pre_tokenizer;
  if (type == "Sequence" && !is_inner) {
    const Json* list = Find(step, "pretokenizers");
    if (list == nullptr || !list->is_array())
      return Fail("pre_tokenizer", "its pretokenizers are no list");
    for (const Json& inner : *list) IBID_RETURN_IF_ERROR(ReadPreTokenizer(inner, true, parts));
    return absl::OkStatus();
  }
  if (type == "ByteLevel") {
    is_byte_level_ = true;
    if (IsTrue(step, "add_prefix_space")) pre_tokenizer.AddPrefixSpace();
    return IsTrue(step, "use_regex", true) ? pre_tokenizer.AddSplit(kGpt2Pattern)
                                           : absl::OkStatus();
  }
  if (type == "Digits") {
    return pre_tokenizer.AddSplit(IsTrue(step, "individual_digits") ? kDigitPattern
                                                                    : kDigitRunPattern);
  }
  if (type == "Split") return ReadSplit(step, parts);
  return Fail("pre_tokenizer",
              absl::StrCat("type '", type,
                           "' is not supported; Sequence, Split, Digits and ByteLevel are"));
}

absl::Status Reader::ReadSplit(const Json& step, ByteLevelParts* parts) {
  const Json* pattern = Find(step, "pattern");
  std::string regex = pattern == nullptr ? std::string() : Text(*pattern, "Regex");
  if (const std::string plain = pattern == nullptr ? std::string() : Text(*pattern, "String");
      !plain.empty()) {
    for (const char c : plain) {  // every ASCII sign that is no letter or digit may be escaped
      const bool is_sign =
          static_cast<unsigned char>(c) < 0x80 && !isalnum(static_cast<unsigned char>(c));
      regex += is_sign ? std::string{'\\', c} : std::string{c};
    }
  }
  if (regex.empty()) return Fail("pre_tokenizer", "a Split has no pattern");
  const std::string behavior = Text(step, "behavior");
  const bool is_removed = behavior == "Removed";
  if (!is_removed && behavior != "Isolated") {
    return Fail("pre_tokenizer", absl::StrCat("Split behavior '", behavior,
                                              "' is not supported; Isolated and Removed are"));
  }
  const bool is_inverted = IsTrue(step, "invert");
  const absl::Status status =
      parts->pre_tokenizer.AddSplit(regex, is_removed && !is_inverted, is_removed && is_inverted);
  return status.ok() ? status : Fail("pre_tokenizer", status.message());
}

absl::Status Reader::ReadPostProcessor(const Json& step, bool is_inner, ByteLevelParts* parts) {
  const std::string type = Text(step, "type");
  if (type == "ByteLevel") return absl::OkStatus();  // trims offsets only
  if (type == "TemplateProcessing") return ReadTemplate(step, parts);
  const Json* list = Find(step, "processors");
  if (type != "Sequence" || is_inner || list == nullptr || !list->is_array()) {
    return Fail("post_processor", absl::StrCat("type '", type, "' is not supported"));
  }
  for (const Json& inner : *list) IBID_RETURN_IF_ERROR(ReadPostProcessor(inner, true, parts));
  return absl::OkStatus();
}

// "single": special tokens, the text ("Sequence"), special tokens.
absl::Status Reader::ReadTemplate(const Json& step, ByteLevelParts* parts) {
  const Json* single = Find(step, "single");
  const Json* tokens = Find(step, "special_tokens");
  if (single == nullptr || !single->is_array())
    return Fail("post_processor", "a TemplateProcessing has no 'single'");
  bool is_after = false;
  for (const Json& item : *single) {
    if (Find(item, "Sequence") != nullptr) {
      is_after = true;
      continue;
    }
    const Json* special = Find(item, "SpecialToken");
    const std::string name = special == nullptr ? std::string() : Text(*special, "id");
    const Json* entry = tokens == nullptr ? nullptr : Find(*tokens, name.c_str());
    const Json* ids = entry == nullptr ? nullptr : Find(*entry, "ids");
    if (ids == nullptr || !ids->is_array()) {
      return Fail("post_processor", absl::StrCat("special token '", name, "' has no ids"));
    }
    for (const Json& id : *ids) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= kVocabularyMax) {
        return Fail("post_processor",
                    absl::StrCat("special token '", name, "' has an id out of range"));
      }
      (is_after ? parts->suffix : parts->prefix).push_back(id.get<uint32_t>());
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ByteLevelParts> ParseTokenizerJson(absl::string_view text, const std::string& file) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    return absl::InvalidArgumentError(absl::StrCat(file, ": is no JSON object"));
  ByteLevelParts parts;
  IBID_RETURN_IF_ERROR(Reader(file).Read(json, &parts));
  return parts;
}

}  // namespace ibid
