// The step. Invariants between iterations:
// - Each sequence is in sequences_ and in exactly one of waiting_, running_, in_store_, by its
// phase.
// - A running sequence has computed < tokens.size(), and its table has room for `computed` tokens;
// the sealed pages
//   of its
//   table are the full blocks of `computed`.
// - Handles of pages are in sequences, in jobs of the connector, or in the inbox.
#include "worker/engine/engine_loop.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/log.h"
#include "worker/engine/engine_metrics.h"
#include "worker/engine/plan_step.h"
#include "worker/engine/sampler.h"

namespace ibid {
namespace {

// A step of at least so many rows says how fast prompts are computed.
constexpr size_t kPrefillRowsMin = 64;

}  // namespace

EngineLoop::EngineLoop(const EngineOptions& options, std::unique_ptr<Model> model,
                       std::unique_ptr<PagePool> pool, const Tokenizer* tokenizer, Client* store,
                       NamespaceSpec spec, Inbox* inbox)
    : options_(options),
      model_(std::move(model)),
      pool_(std::move(pool)),
      tokenizer_(tokenizer),
      store_(store),
      spec_(std::move(spec)),
      inbox_(inbox),
      block_tokens_(model_->layout().block_tokens) {
  if (options_.metrics != nullptr) metrics_ = std::make_unique<EngineMetrics>(*options_.metrics);
  if (store_ != nullptr) {
    connector_ = std::make_unique<Connector>(store_, options_.store, [inbox](StoreCompletion done) {
      inbox->Complete(std::move(done));
    });
  }
  PublishStats();
}

EngineLoop::~EngineLoop() {
  connector_.reset();                  // no job runs after this,
  inbox_->Take(absl::ZeroDuration());  // the pages in their answers are free,
  IBID_CHECK(sequences_.empty());      // and the pool ends without handles.
}

void EngineLoop::Run() {
  bool has_progress = true;
  while (HandleItems(inbox_->Take(WaitTime(has_progress)))) {
    ExpireStoreWaits();
    AdmitWaiting();
    has_progress = RunStep();
    PublishStats();
    CloseFinished();
  }
  while (!sequences_.empty()) {
    Finish(*sequences_.begin()->second, FinishReason::kFailed,
           absl::UnavailableError("the worker is shutting down"),
           /*is_published=*/false);
  }
  PublishStats();
  CloseFinished();
}

// False when it is time to stop.
bool EngineLoop::HandleItems(InboxItems items) {
  for (std::unique_ptr<Sequence>& added : items.submissions) AddSequence(std::move(added));
  for (const RequestId id : items.cancellations) Cancel(id);
  for (StoreCompletion& completion : items.completions) {
    std::visit([this](auto& job) { OnDone(std::move(job)); }, completion);
  }
  return !items.is_stopping;
}

void EngineLoop::AddSequence(std::unique_ptr<Sequence> added) {
  Sequence& sequence = *added;
  sequences_.emplace(sequence.id, std::move(added));
  waiting_.insert(&sequence);
  sequence.submitted = clock_.Now();
  if (tokenizer_ != nullptr) sequence.decoder.emplace(tokenizer_);
  NamespaceSpec spec = spec_;
  spec.salt = sequence.request.salt;
  sequence.ns = MakeNamespaceId(spec);
  if (connector_ != nullptr && sequence.request.store != StoreMode::kOff) {
    sequence.store_ns = connector_->FindNamespace(spec, sequence.ns);
    if (sequence.store_ns == nullptr) ++counts_.storeless_requests;
  }
  if (sequence.request.kind == RequestKind::kDecode) {
    AppendOutput(sequence, sequence.request.first_token);
    if (sequence.reason.has_value()) {
      // No KV was needed, from anywhere.
      sequence.usage.prompt_tokens = static_cast<uint32_t>(sequence.prompt_count());
      EndOutput(sequence);
    }
  }
}

void EngineLoop::AdmitWaiting() {
  if (waiting_.empty()) return;
  const size_t active = running_.size() + in_store_.size();
  if (active >= options_.max_running_requests) return;
  std::vector<size_t> needs;
  for (const Sequence* sequence : waiting_) {
    if (active + needs.size() >= options_.max_running_requests) break;
    needs.push_back((sequence->tokens.size() + block_tokens_ - 1) / block_tokens_);
  }
  size_t count = CountAdmissible(needs, active, options_.max_running_requests,
                                 pool_->available_count(), CountPromisedPages());
  for (; count > 0; --count) BeginLookup(**waiting_.begin());
}

size_t EngineLoop::CountPromisedPages() const {
  size_t promised = 0;
  const auto add = [&](const Sequence& sequence, size_t held) {
    const size_t needed = (sequence.tokens.size() + block_tokens_ - 1) / block_tokens_ + 1;
    promised += needed - std::min(needed, held);
  };
  for (const Sequence* sequence : running_) add(*sequence, sequence->table.pages_count());
  for (const Sequence* sequence : in_store_) {
    if (sequence->phase == SequencePhase::kPublishing) continue;
    const auto* fetch = dynamic_cast<const FetchJob*>(sequence->store_job.get());
    add(*sequence, sequence->own_hits.size() + (fetch != nullptr ? fetch->pages.size() : 0));
  }
  return promised;
}

// True when anything was computed or preempted: then there may be more to do at once.
bool EngineLoop::RunStep() {
  if (running_.empty()) return false;
  const std::vector<Sequence*> order(running_.begin(), running_.end());
  // Counting what preemption would free costs O(pages held): only when a step could need it.
  const size_t pages_of_a_step = options_.max_batch_tokens / block_tokens_ + 1 + order.size();
  const bool is_short = pool_->available_count() < pages_of_a_step;
  std::vector<PlanSequence> views;
  for (const Sequence* sequence : order) {
    views.push_back({sequence->tokens.size(), sequence->computed, sequence->table.pages_count(),
                     is_short ? pool_->CountOwnPages(sequence->table) : 0});
  }
  const StepPlan plan =
      PlanStep({options_.max_batch_tokens, block_tokens_}, views, pool_->available_count());
  for (const size_t index : plan.preempted) Preempt(*order[index]);
  if (plan.rows.empty()) return !plan.preempted.empty();

  std::vector<std::pair<Sequence*, size_t>> rows;
  for (const PlannedRows& planned : plan.rows)
    rows.emplace_back(order[planned.index], planned.tokens_count);
  std::vector<float> logits;
  if (const absl::Status status = ForwardRows(rows, &logits); !status.ok()) {
    IBID_LOG(error, "a step of {} sequences failed: {}", rows.size(), status.ToString());
    for (const auto& [sequence, count] : rows) {
      Finish(*sequence, FinishReason::kFailed, status, /*is_published=*/false);
    }
    return true;
  }
  const size_t vocab = model_->config().vocab;
  size_t logits_row = 0;
  for (const auto& [sequence, count] : rows) {
    OnRowsComputed(*sequence, count);
    if (sequence->computed < sequence->tokens.size()) continue;
    const auto row = std::span<const float>(logits).subspan(logits_row++ * vocab, vocab);
    ++counts_.output_tokens;
    AppendOutput(*sequence, SampleToken(row, sequence->request.sampling, sequence->output_count()));
    if (sequence->reason.has_value()) EndOutput(*sequence);
  }
  return true;
}

void EngineLoop::Preempt(Sequence& sequence) {
  pool_->Touch(sequence.table.sealed());
  sequence.table = BlockTable();
  sequence.computed = 0;
  running_.erase(&sequence);
  sequence.phase = SequencePhase::kWaiting;
  waiting_.insert(&sequence);
  ++counts_.preemptions;
}

absl::Status EngineLoop::ForwardRows(const std::vector<std::pair<Sequence*, size_t>>& rows,
                                     std::vector<float>* logits) {
  std::vector<ForwardSequence> batch;
  batch.reserve(rows.size());
  size_t rows_count = 0;
  for (const auto& [sequence, count] : rows) {
    const size_t end = sequence->computed + count;
    IBID_CHECK(pool_->Extend(sequence->table, end)) << "the plan promised pages";
    batch.push_back({std::span<const uint32_t>(sequence->tokens).subspan(sequence->computed, count),
                     sequence->computed, sequence->table.pages(), end == sequence->tokens.size()});
    rows_count += count;
  }
  const absl::Time start = clock_.Now();
  IBID_RETURN_IF_ERROR(model_->Forward(batch, logits));
  ++counts_.steps;
  const absl::Duration took = clock_.Now() - start;
  if (metrics_ != nullptr) metrics_->OnStep(rows_count, took);
  if (rows_count >= kPrefillRowsMin && took > absl::ZeroDuration()) {
    const double speed = static_cast<double>(rows_count) / absl::ToDoubleSeconds(took);
    const bool is_first = prefill_tokens_per_second_ == 0;
    prefill_tokens_per_second_ = is_first ? speed : 0.8 * prefill_tokens_per_second_ + 0.2 * speed;
  }
  return absl::OkStatus();
}

void EngineLoop::OnRowsComputed(Sequence& sequence, size_t count) {
  const size_t prompt = sequence.prompt_count();
  const bool completes_prompt = sequence.computed < prompt && sequence.computed + count >= prompt;
  sequence.computed += count;
  SealComputed(sequence);
  RenewClaim(sequence);
  // A prompt's tail block grows on in the next step: what is published is a copy of now.
  if (completes_prompt && sequence.computed == prompt) PublishPromptTail(sequence);
}

absl::Duration EngineLoop::WaitTime(bool has_progress) const {
  if (has_progress) return absl::ZeroDuration();
  absl::Time until = clock_.Now() + absl::Hours(1);
  for (const Sequence* sequence : in_store_) until = std::min(until, sequence->store_deadline);
  return std::max(absl::ZeroDuration(), until - clock_.Now());
}

void EngineLoop::PublishStats() {
  const PagePoolStats pool = pool_->stats();
  counts_.running_requests = static_cast<uint32_t>(running_.size() + in_store_.size());
  counts_.waiting_requests = static_cast<uint32_t>(waiting_.size());
  counts_.pages_total = pool.pages;
  counts_.pages_free = pool.free;
  counts_.pages_cached = pool.cached;
  counts_.unequal_duplicates = pool.unequal_duplicates;
  if (metrics_ != nullptr) metrics_->OnStats(counts_);
  MutexLock lock(stats_mutex_);
  stats_ = counts_;
}

EngineStats EngineLoop::stats() const {
  MutexLock lock(stats_mutex_);
  return stats_;
}

bool EngineLoop::WaitUntilFinished(uint64_t count, absl::Duration timeout) {
  const absl::Time until = clock_.Now() + timeout;
  MutexLock lock(stats_mutex_);
  while (finished_count_ < count) {
    const absl::Duration left = until - clock_.Now();
    if (left <= absl::ZeroDuration()) return false;
    stats_changed_.WaitFor(stats_mutex_, left);
  }
  return true;
}

}  // namespace ibid
