// What the tests of the main invariant share: a model, and what it says without a store.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/worker_rig.h"

namespace ibid {

struct ModelCase {
  std::string name;  // in tests/golden
  KvDtype kv_dtype;
};

inline std::string CaseName(const testing::TestParamInfo<ModelCase>& info) {
  return info.param.name + "_" + std::string(DtypeName(info.param.kv_dtype));
}

class EquivalenceTest : public testing::TestWithParam<ModelCase> {
 protected:
  WorkerSetup Setup(std::vector<std::string> servers = {}) const {
    WorkerSetup setup;
    setup.model = std::string(IBID_SOURCE_DIR "/tests/golden/") + GetParam().name;
    setup.kv_dtype = GetParam().kv_dtype;
    setup.servers = std::move(servers);
    return setup;
  }

  // What a worker without a store, and without its own cache, says to the whole request.
  std::vector<uint32_t> Expected(GenerateRequest request) {
    if (reference_ == nullptr) reference_ = std::make_unique<Worker>(Setup());
    request.kind = RequestKind::kGenerate;
    request.ignores_worker_cache = true;
    return reference_->Run(std::move(request)).tokens;
  }

  // Half of the requests sample.
  static GenerateRequest RequestFor(size_t length, uint32_t seed, uint32_t max_tokens = 12) {
    GenerateRequest request = Request(RandomTokens(length, seed), max_tokens);
    if (length % 2 == 1) request.sampling = {0.9f, 30, 0.95f, seed};
    return request;
  }

 private:
  std::unique_ptr<Worker> reference_;
};

}  // namespace ibid
