// Readers of the files that tokenizers come in. Private to worker/tokenizer.
//
// Errors of all: InvalidArgument that names the file and the reason; those of ReadTextFile.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/tokenizer/byte_level_tokenizer.h"
#include "worker/tokenizer/tokenizer.h"

namespace ibid {

// The content of a Hugging Face tokenizer.json; `file` is its name in messages.
absl::StatusOr<ByteLevelParts> ParseTokenizerJson(absl::string_view text, const std::string& file);

// The contents of vocab.json and merges.txt, before anything else is known about them.
absl::StatusOr<ByteLevelParts> ParseVocabAndMerges(absl::string_view vocab_text,
                                                   absl::string_view merges_text,
                                                   const std::string& vocab_file,
                                                   const std::string& merges_file);

// Completes the parts of a folder with vocab.json and merges.txt by its other files: added tokens,
// the pre-tokenizer.
absl::Status AddFolderSettings(const std::string& directory, PreTokenizerKind kind,
                               ByteLevelParts* parts);

// Which pre-tokenizer a vocabulary was trained with, from what its tokens look like.
PreTokenizerKind InferKind(const ByteLevelParts& parts);

// Fills bos and eos from tokenizer_config.json, special_tokens_map.json and config.json of the
// folder, where they are.
absl::Status AddSequenceEnds(const std::string& directory, ByteLevelParts* parts);

// The tokenizer of llama2.c: u32 longest token, then for each id: f32 score, u32 length, bytes.
absl::StatusOr<std::unique_ptr<Tokenizer>> ParseLlama2cTokenizer(absl::string_view bytes,
                                                                 const std::string& file);

}  // namespace ibid
