#include "dtutils/remote_doorbell.h"

#include <cstring>
#include <new>
#include <utility>

namespace cariama {
namespace {

constexpr uint64_t kWord = sizeof(uint64_t);

}  // namespace

void RemoteSleeper::arm() {
  armed_ = true;
  failed_ = false;
  finish();  // the thread may not have slept after an earlier arm()
  try {
    post();
  } catch (const std::bad_alloc&) {  // recheck() returns true, and the thread tries again
  }
}

void RemoteSleeper::post() {
  const absl::StatusOr<Transmitter*> found = path();
  failed_ = absl::IsUnavailable(found.status());
  if (!found.ok()) return;
  Transmitter* const through = *found;
  // Scratch memory: the source of the WRITE, then the target of the READ.
  RDMAMemory& memory = scratch();
  const uint64_t mark = scratch_offset();
  const uint64_t one = 1;
  std::memcpy(memory.get_buffer() + mark, &one, kWord);
  read_.reset();
  absl::Status posted =
      through->write(memory, mark, kWord, doorbell_.slice(RemoteDoorbell::kArmed, kWord));
  if (posted.ok()) {
    posted = through->read(memory, mark + kWord, kWord,
                           doorbell_.slice(RemoteDoorbell::kPublished, kWord), &read_);
  }
  failed_ = absl::IsUnavailable(posted);
  if (posted.ok()) through_ = through;
}

bool RemoteSleeper::recheck() {
  if (!std::exchange(armed_, false)) return true;
  Transmitter* const through = std::exchange(through_, nullptr);
  if (through == nullptr) return !failed_;
  if (!through->wait(read_, kForever).ok()) return false;
  uint64_t published;
  std::memcpy(&published, scratch().get_buffer() + scratch_offset() + kWord, kWord);
  return published > consumed();
}

void RemoteSleeper::finish() {
  Transmitter* const through = std::exchange(through_, nullptr);
  if (through != nullptr) static_cast<void>(through->wait(read_, kForever));
}

}  // namespace cariama
