// A disk that can be told to fail: errors, torn writes, flipped bits, no space, vanished files.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "cache_server/extent_io.h"
#include "core/check.h"

namespace ibid {

// What the disk does wrong now; shared by the test and the store. Thread-safe.
struct DiskFaults {
  std::atomic<bool> writes_fail{false};       // EIO
  std::atomic<bool> writes_stall{false};      // they wait until this is false again
  std::atomic<bool> reads_stall{false};       // the same
  std::atomic<int> stalled_reads_to_pass{0};  // so many of them go on all the same
  std::atomic<bool> reads_fail{false};        // EIO
  std::atomic<bool> has_no_space{false};      // new extents get ENOSPC
  std::atomic<bool> writes_have_no_space{false};
  std::atomic<bool> files_vanished{false};  // reads find no file
  std::atomic<int> writes_to_tear{0};       // the next ones write half and say they succeeded
  // The next ones of several blocks write so many bytes of all, and say they succeeded or failed.
  std::atomic<int> runs_to_tear{0};
  std::atomic<int> runs_to_break{0};
  std::atomic<uint64_t> run_bytes_written{0};
  std::atomic<int> reads_to_flip{0};  // the next ones have a bit flipped
  std::atomic<int> reads_count{0};
  std::atomic<int> writes_count{0};  // a run is one
  std::atomic<int> runs_count{0};
};

class FaultyExtentIo final : public ExtentIo {
 public:
  FaultyExtentIo(std::unique_ptr<ExtentIo> real, std::shared_ptr<DiskFaults> faults)
      : real_(std::move(real)), faults_(std::move(faults)) {}

  absl::Status Prepare(uint32_t extent, uint64_t bytes) override {
    if (faults_->has_no_space) return absl::ResourceExhaustedError("injected: no space for a file");
    return real_->Prepare(extent, bytes);
  }
  absl::Status Write(uint32_t extent, uint64_t offset, ByteView bytes) override {
    IBID_RETURN_IF_ERROR(BeginWrite());
    if (faults_->writes_to_tear > 0) {
      --faults_->writes_to_tear;
      return real_->Write(extent, offset, bytes.first(bytes.size() / 2 / 4096 * 4096));
    }
    return real_->Write(extent, offset, bytes);
  }
  absl::Status WriteParts(uint32_t extent, uint64_t offset,
                          std::span<const ByteView> parts) override {
    if (parts.size() == 1) return Write(extent, offset, parts.front());
    IBID_RETURN_IF_ERROR(BeginWrite());
    ++faults_->runs_count;
    if (faults_->runs_to_tear > 0) {
      --faults_->runs_to_tear;
      return WriteFront(extent, offset, parts);
    }
    if (faults_->runs_to_break > 0) {
      --faults_->runs_to_break;
      IBID_RETURN_IF_ERROR(WriteFront(extent, offset, parts));
      return absl::UnavailableError("injected: write error in the middle");
    }
    return real_->WriteParts(extent, offset, parts);
  }
  absl::Status Read(uint32_t extent, uint64_t offset, MutableByteView into) override {
    ++faults_->reads_count;
    while (faults_->reads_stall && !MayPass())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (faults_->files_vanished) return absl::NotFoundError("injected: no such file");
    if (faults_->reads_fail) return absl::UnavailableError("injected: read error");
    const absl::Status status = real_->Read(extent, offset, into);
    if (status.ok() && faults_->reads_to_flip > 0) {
      --faults_->reads_to_flip;
      into[into.size() / 3] ^= std::byte{0x10};
    }
    return status;
  }
  absl::Status Sync(uint32_t extent) override {
    return faults_->writes_fail ? absl::UnavailableError("injected: sync error")
                                : real_->Sync(extent);
  }
  absl::Status SyncNames() override {
    return faults_->writes_fail ? absl::UnavailableError("injected: sync error")
                                : real_->SyncNames();
  }
  absl::Status Remove(uint32_t extent) override { return real_->Remove(extent); }
  absl::StatusOr<std::vector<uint32_t>> List() override { return real_->List(); }

 private:
  bool MayPass() {
    int left = faults_->stalled_reads_to_pass;
    while (left > 0 && !faults_->stalled_reads_to_pass.compare_exchange_weak(left, left - 1)) {
    }
    return left > 0;
  }
  absl::Status BeginWrite() {
    ++faults_->writes_count;
    while (faults_->writes_stall) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (faults_->writes_fail) return absl::UnavailableError("injected: write error");
    if (faults_->writes_have_no_space) return absl::ResourceExhaustedError("injected: no space");
    return absl::OkStatus();
  }
  absl::Status WriteFront(uint32_t extent, uint64_t offset, std::span<const ByteView> parts) {
    std::vector<ByteView> front;
    uint64_t left = faults_->run_bytes_written;
    for (const ByteView part : parts) {
      const uint64_t bytes = std::min<uint64_t>(left, part.size());
      if (bytes > 0) front.push_back(part.first(bytes));
      left -= bytes;
    }
    return real_->WriteParts(extent, offset, front);
  }

  const std::unique_ptr<ExtentIo> real_;
  const std::shared_ptr<DiskFaults> faults_;
};

}  // namespace ibid
