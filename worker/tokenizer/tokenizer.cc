#include "worker/tokenizer/tokenizer.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "worker/tokenizer/text_file.h"
#include "worker/tokenizer/tokenizer_files.h"
#include "worker/tokenizer/utf8.h"

namespace ibid {

absl::StatusOr<PreTokenizerKind> ParsePreTokenizerKind(absl::string_view name) {
  if (name == "infer") return PreTokenizerKind::kInfer;
  if (name == "gpt2") return PreTokenizerKind::kGpt2;
  if (name == "qwen2") return PreTokenizerKind::kQwen2;
  if (name == "llama3") return PreTokenizerKind::kLlama3;
  if (name == "smollm") return PreTokenizerKind::kSmolLm;
  return absl::InvalidArgumentError(
      absl::StrCat("pre-tokenizer '", name, "': use infer, gpt2, qwen2, llama3 or smollm"));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& directory,
                                                           const TokenizerOptions& options) {
  const auto path = [&](const char* name) { return absl::StrCat(directory, "/", name); };
  const auto exists = [&](const char* name) {
    std::error_code ignored;
    return std::filesystem::exists(path(name), ignored);
  };
  if (exists("tokenizer.json")) {
    IBID_ASSIGN_OR_RETURN(const std::string text,
                          ReadTextFile(path("tokenizer.json"), kTokenizerFileBytesMax));
    IBID_ASSIGN_OR_RETURN(ByteLevelParts parts, ParseTokenizerJson(text, path("tokenizer.json")));
    IBID_RETURN_IF_ERROR(AddSequenceEnds(directory, &parts));
    return ByteLevelTokenizer::Make(std::move(parts), path("tokenizer.json"));
  }
  if (exists("vocab.json") && exists("merges.txt")) {
    IBID_ASSIGN_OR_RETURN(const std::string vocab,
                          ReadTextFile(path("vocab.json"), kTokenizerFileBytesMax));
    IBID_ASSIGN_OR_RETURN(const std::string merges,
                          ReadTextFile(path("merges.txt"), kTokenizerFileBytesMax));
    IBID_ASSIGN_OR_RETURN(
        ByteLevelParts parts,
        ParseVocabAndMerges(vocab, merges, path("vocab.json"), path("merges.txt")));
    IBID_RETURN_IF_ERROR(AddFolderSettings(directory, options.pre_tokenizer, &parts));
    IBID_RETURN_IF_ERROR(AddSequenceEnds(directory, &parts));
    return ByteLevelTokenizer::Make(std::move(parts), path("vocab.json and merges.txt"));
  }
  if (exists("vocab.json") || exists("merges.txt")) {
    const bool has_vocab = exists("vocab.json");
    return absl::InvalidArgumentError(
        absl::StrCat(path(has_vocab ? "vocab.json" : "merges.txt"), ": is half a tokenizer; ",
                     has_vocab ? "merges.txt" : "vocab.json", " is missing"));
  }
  if (exists("tok512.bin")) {
    IBID_ASSIGN_OR_RETURN(const std::string bytes,
                          ReadTextFile(path("tok512.bin"), kTokenizerFileBytesMax));
    return ParseLlama2cTokenizer(bytes, path("tok512.bin"));
  }
  return absl::NotFoundError(
      absl::StrCat(directory, ": no tokenizer.json, no vocab.json with merges.txt, no tok512.bin"));
}

std::string Tokenizer::Decode(const std::vector<uint32_t>& ids, bool skips_special) const {
  std::string bytes, text;
  for (const uint32_t id : ids) {
    if (!(skips_special && is_special(id))) absl::StrAppend(&bytes, TokenBytes(id));
  }
  AppendAsUtf8(bytes, /*is_end=*/true, &text);
  return text;
}

std::string StreamDecoder::Add(uint32_t id) {
  if (!(skips_special_ && tokenizer_->is_special(id)))
    absl::StrAppend(&held_, tokenizer_->TokenBytes(id));
  std::string text;
  held_.erase(0, held_.size() - AppendAsUtf8(held_, /*is_end=*/false, &text));
  return text;
}

std::string StreamDecoder::Finish() {
  std::string text;
  AppendAsUtf8(held_, /*is_end=*/true, &text);
  held_.clear();
  return text;
}

}  // namespace ibid
