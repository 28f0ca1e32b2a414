// error: cariama: the result of this call cannot travel: it is a reference, a view or a unique_ptr
// (return a value), or neither trivially copyable nor known to cereal (give its type a serialize()
// member)
#include <string>

#include "dsfabric/call_encoding.h"

struct Person {
  std::string name;
#ifndef CARIAMA_MUST_NOT_COMPILE
  template <typename Archive>
  void serialize(Archive& archive) {
    archive(name);
  }
#endif
};

auto example() {
  return cariama::make_call([] { return Person{"somebody"}; }).bytes();
}
