// `ibid generate`.
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/flags.h"
#include "client/cli/json.h"
#include "client/cli/utf8.h"
#include "core/check.h"

namespace ibid::cli {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(5);
// More than a worker takes.
constexpr size_t kPromptBytesMax = size_t{64} << 20;

absl::StatusOr<std::string> ReadPrompt(const std::string& path) {
  const auto wrong = [&path](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("--prompt_file=", path, ": ", why));
  };
  std::FILE* const file = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  if (file == nullptr) return wrong(absl::StrCat("cannot be read: ", std::strerror(errno)));
  std::string text;
  std::vector<char> buffer(1 << 16);
  size_t count;
  do {
    errno = 0;
    count = std::fread(buffer.data(), 1, buffer.size(), file);
    text.append(buffer.data(), count);
  } while (count > 0 && text.size() <= kPromptBytesMax);
  const int error = std::ferror(file) != 0 ? errno : 0;
  if (file != stdin) std::fclose(file);
  if (error != 0) return wrong(absl::StrCat("cannot be read: ", std::strerror(error)));
  if (text.size() > kPromptBytesMax) {
    return wrong(absl::StrCat("is longer than ", kPromptBytesMax, " bytes"));
  }
  if (!IsUtf8(text)) return wrong("is not UTF-8 text");
  return text;
}

absl::StatusOr<InferenceStore> ParseStore(const std::string& text) {
  if (text == "rw") return InferenceStore::kReadWrite;
  if (text == "ro") return InferenceStore::kReadOnly;
  if (text == "wo") return InferenceStore::kWriteOnly;
  if (text == "off") return InferenceStore::kOff;
  return absl::InvalidArgumentError(
      absl::StrCat("--store=", text, " is none of rw, ro, wo and off"));
}

absl::StatusOr<InferenceRequest> MakeRequest() {
  if (IsGiven("prompt") + IsGiven("prompt_file") + IsGiven("tokens") != 1) {
    return absl::InvalidArgumentError("give one of --prompt, --prompt_file and --tokens");
  }
  InferenceRequest request;
  request.text = absl::GetFlag(FLAGS_prompt);
  if (IsGiven("prompt_file")) {
    IBID_ASSIGN_OR_RETURN(request.text, ReadPrompt(absl::GetFlag(FLAGS_prompt_file)));
  }
  if (IsGiven("tokens")) {
    IBID_ASSIGN_OR_RETURN(request.tokens, ParseTokens(absl::GetFlag(FLAGS_tokens)));
  }
  request.temperature = static_cast<float>(absl::GetFlag(FLAGS_temperature));
  request.top_k = absl::GetFlag(FLAGS_top_k);
  request.top_p = static_cast<float>(absl::GetFlag(FLAGS_top_p));
  request.seed = absl::GetFlag(FLAGS_seed);
  request.max_tokens = absl::GetFlag(FLAGS_max_tokens);
  request.stop_texts = absl::GetFlag(FLAGS_stop).values;
  IBID_ASSIGN_OR_RETURN(request.store, ParseStore(absl::GetFlag(FLAGS_store)));
  request.ignores_worker_cache = absl::GetFlag(FLAGS_no_worker_cache);
  request.salt = absl::GetFlag(FLAGS_salt);
  return request;
}

// The output, gathered and, unless JSON is wanted, shown as it comes.
class Output {
 public:
  bool Take(const InferencePiece& piece) {
    token_ids_.insert(token_ids_.end(), piece.token_ids.begin(), piece.token_ids.end());
    text_ += piece.text;
    if (!absl::GetFlag(FLAGS_json)) {
      std::fwrite(piece.text.data(), 1, piece.text.size(), stdout);
      std::fflush(stdout);
    }
    return true;
  }

  // For an error after a part of the text.
  void EndLine() const {
    if (absl::GetFlag(FLAGS_json) || text_.empty()) return;
    std::fputs("\n", stdout);
    std::fflush(stdout);
  }

  void PrintEnd(const InferenceFinish& finish) const {
    if (absl::GetFlag(FLAGS_json)) return PrintJson(finish);
    // A model without a tokenizer has no text to show.
    if (text_.empty() && !token_ids_.empty())
      std::fputs(absl::StrJoin(token_ids_, ",").c_str(), stdout);
    std::fputs("\n", stdout);
    std::fflush(stdout);
    absl::FPrintF(stderr,
                  "TTFT %.1f ms, TPOT %.2f ms; prompt %d tokens: %d fetched, %d from the worker's "
                  "pages, %d computed; output %d "
                  "tokens (%s)\n",
                  finish.ttft_ms, finish.tpot_ms, finish.usage.prompt_tokens,
                  finish.usage.fetched_tokens, finish.usage.worker_tokens,
                  finish.usage.computed_tokens, finish.output_tokens, finish.reason);
  }

 private:
  void PrintJson(const InferenceFinish& finish) const {
    const nlohmann::ordered_json json = {{"text", text_},
                                         {"token_ids", token_ids_},
                                         {"usage", ToJson(finish.usage)},
                                         {"output_tokens", finish.output_tokens},
                                         {"ttft_ms", finish.ttft_ms},
                                         {"tpot_ms", finish.tpot_ms},
                                         {"fetch_ms", finish.fetch_ms},
                                         {"finish", finish.reason}};
    // Output of a model may be no UTF-8 at its very end.
    std::puts(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  }

  std::string text_;
  std::vector<uint32_t> token_ids_;
};

int RunGenerate(const Command& command) {
  const absl::StatusOr<InferenceRequest> request = MakeRequest();
  if (!request.ok()) return FailUsage(command, request.status().message());
  const std::string address = absl::GetFlag(FLAGS_worker);
  auto worker = ConnectWorker(address);
  if (!worker.ok()) return FailUsage(command, worker.status().message());
  Output output;
  const auto on_piece = [&output](const InferencePiece& piece) { return output.Take(piece); };

  const std::string prefill_address = absl::GetFlag(FLAGS_prefill_worker);
  absl::StatusOr<InferenceFinish> finish;
  if (prefill_address.empty()) {
    finish = (*worker)->Generate(*request, TimeoutOr(kTimeout), on_piece);
  } else {
    auto prefill_worker = ConnectWorker(prefill_address);
    if (!prefill_worker.ok()) return FailUsage(command, prefill_worker.status().message());
    const auto prefill = (*prefill_worker)->Prefill(*request, TimeoutOr(kTimeout));
    if (!prefill.ok()) return FailWorker(command, "prefill", prefill_address, prefill.status());
    finish = (*worker)->Decode(*request, *prefill, TimeoutOr(kTimeout), on_piece);
    // The first token was the other worker's; what this one did for the prompt stays visible.
    if (finish.ok()) finish->ttft_ms = prefill->ttft_ms;
  }
  if (!finish.ok()) {
    output.EndLine();
    return FailWorker(command, "generating", address, finish.status());
  }
  output.PrintEnd(*finish);
  return kExitOk;
}

}  // namespace

const Command kGenerateCommand = {
    "generate",
    "let a worker continue a prompt",
    "Text goes to standard output as it comes; then a line on standard error says how long the "
    "first token took and "
    "how the\n"
    "prompt came to have KV. With --json, one object at the end: text, token_ids, usage, ttft_ms, "
    "tpot_ms, finish. "
    "With\n"
    "--prefill_worker, that worker computes the prompt, and --worker fetches its blocks from the "
    "store and goes on.\n\n"
    "  ibid generate --prompt=\"Once upon a time\" --max_tokens=32\n  ibid generate "
    "--prompt_file=- --json < "
    "prompt.txt\n",
    {"worker", "prompt", "prompt_file", "tokens", "max_tokens", "temperature", "top_k", "top_p",
     "seed", "stop", "store", "salt", "no_worker_cache", "prefill_worker"},
    RunGenerate};

}  // namespace ibid::cli
