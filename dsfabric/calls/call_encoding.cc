#include "dsfabric/call_encoding.h"

#include <cxxabi.h>

#include <cstdlib>
#include <string_view>
#include <typeinfo>

#include "dsfabric/internal/call_failures.h"
#include "dtutils/error.h"
#include "dtutils/internal/exception_error.h"
#include "dtutils/internal/peer_remedy.h"

namespace cariama {
namespace {

std::string readable_type(const std::type_info& type) {
  int status = 0;
  char* const readable = abi::__cxa_demangle(type.name(), nullptr, nullptr, &status);
  std::string name = status == 0 ? readable : type.name();
  std::free(readable);
  return name;
}

absl::Status malformed(std::string_view what) {
  return internal::error_or_code(absl::StatusCode::kInvalidArgument, [&] {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "a call arrived malformed: " + std::string(what));
  });
}

}  // namespace

void run_call(const CallHeader& header, IncomingCall& call) {
  const FunctionStub stub = FunctionTable::resolve(header.id());
  if (stub == nullptr) [[unlikely]] {
    call.outcome = CallOutcome::kUnknown;
    return;
  }
  stub(call);
}

absl::StatusOr<ParsedCall> parse_call(std::span<std::byte> bytes) {
  ParsedCall call;
  if (bytes.size() < sizeof(CallHeader)) return malformed("its header is cut short");
  std::memcpy(&call.header, bytes.data(), sizeof call.header);
  if (call.header.function == 0) return malformed("it names no function");
  if ((call.header.flags() & ~(kCallNotify | kCallReturn)) != 0) return malformed("unknown flags");
  if (call.header.bytes() > bytes.size() - sizeof(CallHeader)) {
    return malformed("it is longer than its message");
  }
  call.total = sizeof(CallHeader) + call.header.bytes();
  call.closure = bytes.subspan(sizeof(CallHeader), call.header.bytes());
  if ((call.header.flags() & (kCallNotify | kCallReturn)) != 0) {
    if (call.closure.size() < sizeof(NotifyTarget))
      return malformed("its notification is cut short");
    call.has_notify = true;
    std::memcpy(&call.notify, call.closure.data(), sizeof call.notify);
    call.closure = call.closure.subspan(sizeof(NotifyTarget));
  }
  return call;
}

namespace internal {

void note_exception(IncomingCall& call) noexcept {
  call.outcome = CallOutcome::kThrew;
  try {
    throw;
  } catch (const std::exception& error) {
    try {
      call.error_type = readable_type(typeid(error));
      call.error_text = std::string_view(error.what()).substr(0, kMaxErrorText);
    } catch (...) {  // no memory for the texts; the outcome is set
    }
  } catch (...) {
    try {
      const std::type_info* const type = abi::__cxa_current_exception_type();
      call.error_type = type != nullptr ? readable_type(*type) : "unknown";
    } catch (...) {
    }
  }
}

std::string describe_exception(const std::string& type, const std::string& text) {
  return text.empty() ? type : type + ": " + text;
}

absl::Status no_room_in_time(const std::string& label) {
  return make_error(
      absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
      label + " had no room for a call in time; the call was not sent",
      "let it run its calls, raise FabricOptions::retry_timeout, or use RetryAsync; " +
          std::string(peer_remedy(PeerRemedy::kSilent)));
}

absl::Status unreadable_result() {
  return error_or_code(absl::StatusCode::kInternal, [] {
    return make_error(absl::StatusCode::kInternal, ErrorScope::kOperation,
                      "the result of a call could not be read: " + describe_exception());
  });
}

std::string describe_exception() {
  IncomingCall call;
  note_exception(call);
  return describe_exception(call.error_type, call.error_text);
}

}  // namespace internal
}  // namespace cariama
