// DeviceMemory in the host's own memory.
#include <pthread.h>

#include <cstring>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/device_memory.h"
#include "core/host_memory.h"
#include "core/mutex.h"

namespace ibid {
namespace {

constexpr uint32_t kStreamsMax = 64;

class HostEvent final : public DeviceMemory::Event {
 public:
  void Reach() {
    {
      MutexLock lock(mutex_);
      is_reached_ = true;
    }
    reached_.NotifyAll();
  }
  void Wait() {
    MutexLock lock(mutex_);
    while (!is_reached_) reached_.Wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar reached_;
  bool is_reached_ IBID_GUARDED_BY(mutex_) = false;
};

// Its work is as bounded as the copies that the owner has under way.
class HostStream {
 public:
  HostStream() : thread_([this] { Run(); }) {
    pthread_setname_np(thread_.native_handle(), "ibid-device");
  }
  ~HostStream() {
    {
      MutexLock lock(mutex_);
      is_stopping_ = true;
    }
    has_work_.NotifyAll();
    thread_.join();
  }

  void Begin(std::function<void()> work) {
    // Under the lock: who hears that the work is done may destroy this.
    MutexLock lock(mutex_);
    work_.push_back(std::move(work));
    has_work_.NotifyOne();
  }

 private:
  void Run() {
    while (true) {
      std::function<void()> work;
      {
        MutexLock lock(mutex_);
        while (work_.empty() && !is_stopping_) has_work_.Wait(mutex_);
        if (work_.empty()) return;
        work = std::move(work_.front());
        work_.pop_front();
      }
      work();
    }
  }

  Mutex mutex_;
  CondVar has_work_;
  std::deque<std::function<void()>> work_ IBID_GUARDED_BY(mutex_);
  bool is_stopping_ IBID_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

class HostDeviceMemory final : public DeviceMemory {
 public:
  HostDeviceMemory(HostMemory memory, uint32_t streams_count) : memory_(std::move(memory)) {
    for (uint32_t i = 0; i < streams_count; ++i) streams_.push_back(std::make_unique<HostStream>());
  }

  absl::string_view kind() const override { return "host"; }
  uint64_t bytes() const override { return memory_.size(); }
  uint32_t streams_count() const override { return static_cast<uint32_t>(streams_.size()); }
  absl::Status RegisterHost(MutableByteView memory) override { return absl::OkStatus(); }

  void CopyToHost(Stream stream, uint64_t offset, MutableByteView to, Done done) override {
    Begin(stream, [from = At(offset, to.size()), to, done = std::move(done)] {
      std::memcpy(to.data(), from, to.size());
      done(absl::OkStatus());
    });
  }
  void CopyFromHost(Stream stream, uint64_t offset, ByteView from, Done done) override {
    Begin(stream, [to = At(offset, from.size()), from, done = std::move(done)] {
      std::memcpy(to, from.data(), from.size());
      done(absl::OkStatus());
    });
  }
  void CopyWithin(Stream stream, uint64_t from, uint64_t to, uint64_t bytes, Done done) override {
    Begin(stream,
          [source = At(from, bytes), target = At(to, bytes), bytes, done = std::move(done)] {
            std::memcpy(target, source, bytes);
            done(absl::OkStatus());
          });
  }

  std::shared_ptr<Event> Record(Stream stream) override {
    auto event = std::make_shared<HostEvent>();
    Begin(stream, [event] { event->Reach(); });
    return event;
  }
  void WaitFor(Stream stream, std::shared_ptr<Event> event) override {
    Begin(stream,
          [event = std::static_pointer_cast<HostEvent>(std::move(event))] { event->Wait(); });
  }

 private:
  std::byte* At(uint64_t offset, uint64_t bytes) {
    IBID_CHECK(offset <= memory_.size() && bytes <= memory_.size() - offset)
        << offset << " + " << bytes << " of " << memory_.size() << " bytes";
    return memory_.begin() + offset;
  }
  void Begin(Stream stream, std::function<void()> work) {
    IBID_CHECK(stream < streams_.size()) << "stream " << stream;
    streams_[stream]->Begin(std::move(work));
  }

  HostMemory memory_;
  std::vector<std::unique_ptr<HostStream>> streams_;  // last: their work uses the memory
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceMemory>> CreateHostDeviceMemory(uint64_t bytes,
                                                                     uint32_t streams_count) {
  if (bytes == 0) return absl::InvalidArgumentError("device memory of 0 bytes");
  if (streams_count == 0 || streams_count > kStreamsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("device streams ", streams_count, ": use 1 to ", kStreamsMax));
  }
  IBID_ASSIGN_OR_RETURN(HostMemory memory, HostMemory::CreatePrivate(bytes));
  return std::make_unique<HostDeviceMemory>(std::move(memory), streams_count);
}

}  // namespace ibid
