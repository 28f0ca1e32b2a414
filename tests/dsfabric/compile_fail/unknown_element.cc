// error: cariama: an argument of this call is neither trivially copyable nor known to cereal;
// give its type a serialize() member
#include <map>
#include <string>
#include <vector>

#include "dsfabric/send_call.h"

// A container whose elements cannot travel. Without the check in Serializable, cereal would report
// this by a page of template errors.
struct NotSaved {
  std::string name;
#ifndef CARIAMA_MUST_NOT_COMPILE
  template <typename Archive>
  void serialize(Archive& archive) {
    archive(name);
  }
#endif
};

void example(cariama::Fabric& fabric, const std::map<int, std::vector<NotSaved>>& people) {
  static_cast<void>(cariama::call(
      fabric, 1,
      [](const std::map<int, std::vector<NotSaved>>& given) { static_cast<void>(given); }, people));
}
