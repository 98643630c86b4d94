// What Client::FetchInPlace answers.
#pragma once

#include <cstddef>
#include <memory>

#include "core/checksum.h"

namespace ibid {

class ClientImpl;

// Blocks where they lie in the memory of a server on this host; the lease of the match that they
// are from lives as long as this. Move-only.
class BlocksInPlace {
 public:
  BlocksInPlace();
  BlocksInPlace(BlocksInPlace&&) noexcept;
  BlocksInPlace& operator=(BlocksInPlace&&) noexcept;
  ~BlocksInPlace();

  size_t size() const;
  // Empty when it is not there: to be fetched, or computed. Its bytes were right when the server
  // took them into its memory; Verify tells whether they still are.
  ByteView block(size_t i) const;
  // To be asked after the bytes were used: all that was read of them up to now was the block's.
  // False once the lease has ended (the session broke, the server stalled) and the memory is used
  // for something else: then what was made of them must be thrown away.
  bool is_current(size_t i) const;
  // Reads the block: its checksum is right, and it is current.
  bool Verify(size_t i) const;

 private:
  friend class ClientImpl;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ibid
