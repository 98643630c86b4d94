// Sequence is the engine's state of one request. Owned by the engine thread once it left the inbox.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "core/block_key.h"
#include "worker/engine/connector.h"
#include "worker/engine/page_pool.h"
#include "worker/engine/request.h"
#include "worker/engine/stop_text.h"
#include "worker/engine/token_stream.h"
#include "worker/tokenizer/tokenizer.h"

namespace ibid {

//             .------------- preempted -------------.
//             v                                     |
//   waiting ----> matching ----> fetching ----> running ----> publishing (prefill only) ----> gone
//             |   ^  |  '---- a miss, too late ----^  ^
//             |   |  '-> claiming ----- ours ---------+
//             |  awaiting <-' another's               |
//             '---- all here, or no store ------------'
enum class SequencePhase {
  kWaiting,
  kMatching,
  kClaiming,  // asking who computes what is missing
  kAwaiting,  // another worker computes it
  kFetching,
  kRunning,
  kPublishing
};

// What tokens[] looks like, with P prompt tokens:
//
//   | sealed blocks ... | open blocks ...      | known, not computed |
//   0                   sealed * block_tokens  computed              tokens.size()
struct Sequence {
  Sequence(RequestId id_in, GenerateRequest request_in, std::shared_ptr<TokenStream> stream_in)
      : id(id_in),
        request(std::move(request_in)),
        stream(std::move(stream_in)),
        tokens(request.prompt),
        stop_filter(request.stop.texts) {}

  const RequestId id;  // in order of arrival
  const GenerateRequest request;
  const std::shared_ptr<TokenStream> stream;
  SequencePhase phase = SequencePhase::kWaiting;

  NamespaceId ns;
  std::shared_ptr<StoreNamespace> store_ns;  // null: this request does without the store

  std::vector<uint32_t> tokens;  // prompt, then output
  size_t computed = 0;           // tokens with KV in `table`
  std::vector<ChainLink> chain;  // full blocks of `tokens`, as far as they were needed
  BlockTable table;

  // Finding what is there already (phases kMatching to kFetching).
  std::optional<ChainLink> lookup_tail;  // the tail block that ends the tokens looked up
  std::vector<SealedPage> own_hits;      // leading blocks that this worker has
  std::shared_ptr<StoreJob> store_job;   // whose answer is awaited
  absl::Time store_wait_since;
  absl::Time store_deadline;  // after which the sequence goes on without (also in kPublishing)
  absl::Duration store_wait = absl::ZeroDuration();
  // Single flight. Blocks of `chain` that are claimed for this sequence; none when equal.
  size_t claimed_begin = 0, claimed_end = 0;
  absl::Time claim_renewal_at;
  size_t await_begin = 0;                         // the first block that it waits for
  absl::Time await_began;                         // this time
  absl::Time await_since;                         // that it waits for it, or for who took it over
  absl::Time await_until;                         // then the claim is taken over
  absl::Time await_limit = absl::InfinitePast();  // whatever comes meanwhile; past: no wait yet
  absl::Duration awaited = absl::ZeroDuration();  // of this lookup, until await_began
  uint32_t refusals_count = 0;                    // at await_begin
  bool was_admitted = false;
  bool is_prompt_tail_published = false;

  // Output.
  std::optional<StreamDecoder> decoder;
  StopTextFilter stop_filter;
  PromptUsage usage;
  absl::Time submitted, first_token_at, last_token_at;
  std::optional<FinishReason> reason;  // set when no more tokens are wanted
  bool is_output_complete = false;     // false for a prefill whose output goes on elsewhere

  // Publishing.
  size_t offered_blocks =
      0;                   // leading sealed blocks that were offered to the store, or need not be
  size_t offered_end = 0;  // blocks from here on were never offered
  absl::Time offer_again_at = absl::InfinitePast();
  std::vector<std::shared_ptr<PublishJob>> publishes;  // that are not answered yet
  std::optional<SealedPage> tail_page;                 // of a prefill that has ended
  bool is_settled = false;                             // what is not published is counted

  size_t prompt_count() const { return request.prompt.size(); }
  size_t output_count() const { return tokens.size() - request.prompt.size(); }
  // Tokens whose KV may be found instead of computed: the prompt, or all but the newest token of
  // one that goes on.
  size_t lookup_count() const { return std::max(prompt_count(), tokens.size() - 1); }
  bool reads_store() const {
    return store_ns != nullptr &&
           (request.store == StoreMode::kReadWrite || request.store == StoreMode::kReadOnly);
  }
  bool writes_store() const {
    return store_ns != nullptr &&
           (request.store == StoreMode::kReadWrite || request.store == StoreMode::kWriteOnly);
  }
};

struct ByArrival {
  bool operator()(const Sequence* a, const Sequence* b) const { return a->id < b->id; }
};

}  // namespace ibid
