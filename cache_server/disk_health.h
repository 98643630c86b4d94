// Whether the disk tier may be read and written now. Pure: times are arguments.
//
//          write error                      8 read errors in a row
//   ok ------------------> read-only     ok ----------------------> down
//    ^                        |           ^                           |
//    +--- a write works ------+           +------ a read works -------+
//         (tried after a backoff of 0.1 s, doubled each time, at most 30 s)
//
// Thread safety: every method, from any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/mutex.h"

namespace ibid {

class DiskHealth {
 public:
  // While the side is broken, true once after each backoff: that call is the trial.
  bool CanWrite(absl::Time now);
  bool CanRead(absl::Time now);
  // Changes nothing. Matches look here.
  bool is_readable() const;
  bool is_writable() const;
  // A broken side whose next trial is due.
  bool is_trial_due(absl::Time now) const;

  void OnWrite(const absl::Status& result, absl::Time now);
  void OnRead(const absl::Status& result, absl::Time now);

  // "ok", or "read-only: ..." or "down: ..." with the error.
  std::string text() const;

 private:
  struct Side {
    bool is_broken = false;
    int errors_in_a_row = 0;
    absl::Duration backoff = absl::ZeroDuration();
    absl::Time retry_at;
    std::string error;
  };

  static bool Try(Side& side, absl::Time now);
  static void Record(Side& side, int errors_max, const absl::Status& result, absl::Time now);

  mutable Mutex mutex_;
  Side write_ IBID_GUARDED_BY(mutex_);
  Side read_ IBID_GUARDED_BY(mutex_);
};

}  // namespace ibid
