// Runs the parts of one call to several servers side by side.
#pragma once

#include <functional>
#include <span>

#include "core/executor.h"

namespace ibid {

// Runs all `parts`, the first on the calling thread, and returns when all are done. A part that no
// thread of `executor` has taken up by then runs on the calling thread: so a busy or full executor
// makes a call slower and never stuck, and a part that looks at its deadline first costs nothing
// once that has passed.
void FanOut(Executor& executor, std::span<const std::function<void()>> parts);

}  // namespace ibid
