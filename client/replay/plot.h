// The rows of a sweep as a picture.
#pragma once

#include <span>
#include <string>

#include "client/replay/sweep.h"
#include "client/replay/trace.h"

namespace ibid {

// SVG text: a panel for each trace, two in a row; token hit ratio over capacity on a logarithmic
// axis, a line for each policy. It brings its background along and follows the viewer's light or
// dark mode. Uses no font or file of its own. REQUIRES: `rows` as RunSweep returns them for
// `traces`; not empty.
std::string SweepSvg(std::span<const Trace> traces, std::span<const SweepRow> rows);

}  // namespace ibid
