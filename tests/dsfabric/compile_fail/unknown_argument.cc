// error: cariama: an argument of this call is neither trivially copyable nor known to cereal;
// give its type a serialize() member
#include <string>

#include "dsfabric/send_call.h"

struct Person {
  std::string name;
#ifndef CARIAMA_MUST_NOT_COMPILE
  template <typename Archive>
  void serialize(Archive& archive) {
    archive(name);
  }
#endif
};

void example(cariama::Fabric& fabric, const Person& person) {
  static_cast<void>(cariama::call(
      fabric, 1, [](const Person& given) { static_cast<void>(given.name); }, person));
}
