// EngineLoop is what the engine thread owns: sequences, page pool, model, connector. One iteration:
// drain the inbox, admit, plan, extend block tables, forward, sample, seal, publish.
//
// Thread safety: Run and all private methods belong to the engine thread; stats() and
// WaitUntilFinished() to any.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "worker/engine/engine.h"
#include "worker/engine/inbox.h"
#include "worker/engine/page_pool.h"
#include "worker/engine/sequence.h"

namespace ibid {

class EngineMetrics;

class EngineLoop {
 public:
  EngineLoop(const EngineOptions& options, std::unique_ptr<Model> model,
             std::unique_ptr<PagePool> pool, const Tokenizer* tokenizer, Client* store,
             NamespaceSpec spec, Inbox* inbox);
  // REQUIRES: Run has returned.
  ~EngineLoop();

  // Until the inbox says stop; then ends all sequences.
  void Run();

  EngineStats stats() const;
  // Until `count` requests have ended since the start. False after `timeout`.
  bool WaitUntilFinished(uint64_t count, absl::Duration timeout);

 private:
  using SequenceSet = std::set<Sequence*, ByArrival>;

  // engine_loop.cc: the step.
  bool HandleItems(InboxItems items);
  void AddSequence(std::unique_ptr<Sequence> added);
  void AdmitWaiting();
  size_t CountPromisedPages() const;
  bool RunStep();
  void Preempt(Sequence& sequence);
  absl::Status ForwardRows(const std::vector<std::pair<Sequence*, size_t>>& rows,
                           std::vector<float>* logits);
  void OnRowsComputed(Sequence& sequence, size_t count);
  absl::Duration WaitTime(bool has_progress) const;
  void PublishStats();

  // engine_output.cc: tokens out, ends.
  void AppendOutput(Sequence& sequence, uint32_t token);
  void EndOutput(Sequence& sequence);
  void Cancel(RequestId id);
  // Frees all that the sequence holds, and closes its stream at the end of this iteration.
  void Finish(Sequence& sequence, FinishReason reason, absl::Status status, bool is_published);
  void CloseFinished();
  bool IsEndToken(const Sequence& sequence, uint32_t token) const;

  // engine_store.cc: what is there already.
  void BeginLookup(Sequence& sequence);
  void FindOwnBlocks(Sequence& sequence);
  std::shared_ptr<MatchJob> MakeMatchJob(const Sequence& sequence) const;
  bool StartMatch(Sequence& sequence);
  void OnDone(std::shared_ptr<MatchJob> job);
  bool StartFetch(Sequence& sequence, PrefixMatch match, size_t start);
  void OnDone(std::shared_ptr<FetchJob> job);
  void StartRunning(Sequence& sequence, std::vector<OpenPage> fetched);
  void ExpireStoreWaits();
  Sequence* FindAwaiting(const StoreJob* job);
  size_t UsefulBlocks(const Sequence& sequence) const;
  ChainLink TailLink(const Sequence& sequence, size_t tokens_count) const;

  // engine_claim.cc: who computes what is missing.
  bool ClaimsBlocks(const Sequence& sequence) const;
  bool StartClaim(Sequence& sequence, MatchJob& matched);
  void OnDone(std::shared_ptr<ClaimJob> job);
  absl::Duration AwaitSlice() const;
  void BeginPatience(Sequence& sequence, size_t begin);
  bool IsOutOfPatience(const Sequence& sequence, size_t begin) const;
  bool StartAwait(Sequence& sequence, size_t begin, bool is_refusal);
  void RenewClaim(Sequence& sequence);
  void WithdrawClaims(const Sequence& sequence);
  void Withdraw(const std::shared_ptr<StoreNamespace>& ns, std::vector<ChainLink> links);

  // engine_publish.cc: what others may have.
  void SealComputed(Sequence& sequence);
  void PublishSealed(Sequence& sequence, bool is_last_try);
  absl::flat_hash_set<BlockKey> KeysOnTheirWay(const Sequence& sequence) const;
  void CountUnpublished(const Sequence& sequence);
  bool Publish(Sequence& sequence, std::vector<SealedPage> pages, bool is_last_of_prefill);
  void PublishTail(Sequence& sequence, const SealedPage& tail);
  void PublishPromptTail(Sequence& sequence);
  void PublishEnd(Sequence& sequence);
  void BeginPrefillPublish(Sequence& sequence);
  void TryLastPublish(Sequence& sequence);
  void OnDone(std::shared_ptr<PublishJob> job);

  const EngineOptions options_;
  const SteadyClock clock_;
  const std::unique_ptr<Model> model_;
  const std::unique_ptr<PagePool> pool_;
  const Tokenizer* const tokenizer_;
  Client* const store_;
  const NamespaceSpec spec_;
  Inbox* const inbox_;
  const uint32_t block_tokens_;
  std::unique_ptr<EngineMetrics> metrics_;
  std::unique_ptr<Connector> connector_;  // null without a store

  std::map<RequestId, std::unique_ptr<Sequence>> sequences_;  // all
  SequenceSet waiting_, running_,
      in_store_;  // by phase; in_store_: matching to fetching, publishing
  std::vector<std::pair<std::shared_ptr<TokenStream>, struct Finish>> finished_;
  EngineStats counts_;
  double prefill_tokens_per_second_ = 0;  // of late; 0: not known yet

  mutable Mutex stats_mutex_;
  CondVar stats_changed_;
  EngineStats stats_ IBID_GUARDED_BY(stats_mutex_);
  uint64_t finished_count_ IBID_GUARDED_BY(stats_mutex_) = 0;
};

}  // namespace ibid
