#include "client/fan_out.h"

#include <atomic>
#include <memory>
#include <vector>

#include "core/mutex.h"

namespace ibid {
namespace {

// Outlives the call where the executor gets to a part late; `parts` does not, and is touched only
// by whoever claimed a part: the call waits for that one.
struct Progress {
  explicit Progress(std::span<const std::function<void()>> all) : parts(all), claimed(all.size()) {}

  void RunIfUnclaimed(size_t index) {
    if (claimed[index].exchange(true)) return;
    parts[index]();
    MutexLock lock(mutex);
    if (++done_count == claimed.size()) all_done.NotifyAll();
  }

  const std::span<const std::function<void()>> parts;
  std::vector<std::atomic<bool>> claimed;
  Mutex mutex;
  CondVar all_done;
  size_t done_count IBID_GUARDED_BY(mutex) = 0;
};

}  // namespace

void FanOut(Executor& executor, std::span<const std::function<void()>> parts) {
  if (parts.empty()) return;
  if (parts.size() == 1) return parts[0]();
  auto progress = std::make_shared<Progress>(parts);
  for (size_t i = 1; i < parts.size(); ++i) {
    if (!executor.TrySubmit([progress, i] { progress->RunIfUnclaimed(i); })) break;
  }
  for (size_t i = 0; i < parts.size(); ++i) progress->RunIfUnclaimed(i);
  MutexLock lock(progress->mutex);
  while (progress->done_count < parts.size()) progress->all_done.Wait(progress->mutex);
}

}  // namespace ibid
