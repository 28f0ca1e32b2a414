// Completions: both events of every form of call, send-based, one-sided and broadcast, each with
// every kind of object.
#include "dsfabric/completions.h"

#include <atomic>
#include <cstddef>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSize = 1000;

std::atomic<int> ran;  // calls, in all processes

void add_one(void* buffer, uint64_t size) {
  const auto* const bytes = static_cast<const unsigned char*>(buffer);
  if (size == kSize && bytes[0] == 7 && bytes[size - 1] == 7) ++ran;
}
constexpr auto kTake = [](void* buffer, uint64_t size) { add_one(buffer, size); };

class CallCompletions : public ::testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] static LocalJobOptions job_of(uint32_t processes) {
    ran = 0;
    return {.processes = processes, .transport = transport_case(GetParam())};
  }
};

// Counts events for which a callback ran in the thread that made the call.
struct Events {
  explicit Events(Fabric& fabric) : fabric(fabric), thread(fabric.this_thread()) {}
  [[nodiscard]] auto ok() {
    return [this](const absl::Status& status) {
      EXPECT_EQ(status, absl::OkStatus());
      EXPECT_EQ(fabric.this_thread(), thread);
      ++count;
    };
  }
  Fabric& fabric;
  ThreadContext* const thread;
  std::atomic<int> count{0};
};

// Sends a call with every combination of objects by send(completions), which returns a CallResult.
// The call runs `runs` times and leaves its process by publish().
template <typename Send, typename Publish>
void with_every_object(Fabric& fabric, int runs, const Send& send, const Publish& publish) {
  const auto until = [&](const auto& condition) {
    EXPECT_TRUE(fabric.wait([&] { return condition(); }, soon()));
  };
  int expected = ran;
  {
    Synchronizer sent;
    Synchronizer run;
    ASSERT_EQ(send(on_transmitted(sent) | on_consumed(run)).status(), absl::OkStatus());
    publish();
    until([&] { return sent.done() && run.done(); });
    EXPECT_EQ(sent.status(), absl::OkStatus());
    EXPECT_EQ(run.status(), absl::OkStatus());
    EXPECT_EQ(ran, expected += runs);
  }
  {
    Future<void> sent;
    Future<void> run;
    ASSERT_EQ(send(on_consumed(run) | on_transmitted(sent)).status(), absl::OkStatus());
    publish();
    EXPECT_EQ(run.get(soon()), absl::OkStatus());
    EXPECT_EQ(sent.get(soon()), absl::OkStatus());
    EXPECT_EQ(ran, expected += runs);
  }
  {
    Events sent(fabric);
    Events run(fabric);
    ASSERT_EQ(send(on_transmitted(sent.ok()) | on_consumed(run.ok())).status(), absl::OkStatus());
    publish();
    until([&] { return sent.count == 1 && run.count == 1; });
    EXPECT_EQ(ran, expected += runs);
  }
  {
    Events sent(fabric);
    Future<void> run;
    ASSERT_EQ(send(on_transmitted(sent.ok()) | on_consumed(run)).status(), absl::OkStatus());
    publish();
    EXPECT_EQ(run.get(soon()), absl::OkStatus());
    until([&] { return sent.count == 1; });
    EXPECT_EQ(ran, expected += runs);
  }
  {
    Events run(fabric);  // one event alone
    ASSERT_EQ(send(on_consumed(run.ok())).status(), absl::OkStatus());
    publish();
    until([&] { return run.count == 1; });
    EXPECT_EQ(ran, expected += runs);
  }
}

// Sends the call with each kind of completion, for a call whose end a RemoteObject can report.
template <typename Send, typename Publish>
void with_written(Fabric& fabric, const Send& send, const Publish& publish) {
  const int before = ran;
  Future<void> sent;
  auto run = must(RemoteObject<Synchronizer>::create(fabric));
  ASSERT_EQ(send(on_transmitted(sent) | on_consumed(run)).status(), absl::OkStatus());
  publish();
  EXPECT_EQ(run.wait(soon()), absl::OkStatus());
  EXPECT_EQ(sent.get(soon()), absl::OkStatus());
  EXPECT_EQ(ran, before + 1);
}

// Applies both to every form of call: `path` has the calls, without destination.
template <typename Path, typename Publish>
void every_form(Fabric& fabric, Path& path, RDMAMemory& memory, const RemoteMemoryLocator& target,
                const Publish& publish) {
  const std::vector<std::byte> own(kSize, std::byte{7});
  const std::span<const std::byte> bytes(own);
  const auto check = [&](const char* form, const auto& send) {
    SCOPED_TRACE(form);
    with_every_object(fabric, 1, send, publish);
  };
  const auto check_written = [&](const char* form, const auto& send) {
    check(form, send);
    SCOPED_TRACE(form);
    with_written(fabric, send, publish);
  };
  check_written("call",
                [&](auto completions) { return path.call([] { ++ran; }, std::move(completions)); });
  check_written("call with arguments", [&](auto completions) {
    return path.call([](const std::string& text, int n) { ran += text == "five" && n == 5; },
                     std::move(completions), std::string("five"), 5);
  });
  check_written("call_buffer, copied span", [&](auto completions) {
    return path.call_buffer(kTake, bytes, std::move(completions));
  });
  check_written("call_buffer, copied memory", [&](auto completions) {
    return path.call_buffer(kTake, &memory, 0, kSize, std::move(completions));
  });
  check_written("call_buffer, READ", [&](auto completions) {
    return path.template call_buffer<Sync>(kTake, &memory, 0, kSize, std::move(completions));
  });
  check_written("call_buffer, READ asynchronously", [&](auto completions) {
    return path.template call_buffer<Async>(kTake, &memory, 0, kSize, std::move(completions));
  });
  check("call_buffer, READ span", [&](auto completions) {
    return path.template call_buffer<Sync>(kTake, bytes, std::move(completions));
  });
  check_written("call_buffer, written memory", [&](auto completions) {
    return path.call_buffer(kTake, &memory, 0, kSize, target, std::move(completions));
  });
  check_written("call_buffer, written span", [&](auto completions) {
    return path.call_buffer(kTake, bytes, target, std::move(completions));
  });
  static int result;
  check("call_return", [&](auto completions) {
    return path.call_return([](int n) { return ran += n; }, result, std::move(completions), 1);
  });
  EXPECT_EQ(result, ran);
}

// The send-based calls to one thread, in the form of a messenger.
struct SendBased {
  template <auto... Options, typename F, typename... Given>
  CallResult call(F&& function, Given&&... given) {
    return cariama::call<Options...>(fabric, to, function, std::forward<Given>(given)...);
  }
  template <auto... Options, typename F, typename... Given>
  CallResult call_buffer(F&& function, Given&&... given) {
    return cariama::call_buffer<Options...>(fabric, to, function, std::forward<Given>(given)...);
  }
  template <auto... Options, typename F, typename... Given>
  CallResult call_return(F&& function, int& result, Given&&... given) {
    return cariama::call_return<Options...>(fabric, to, function, result,
                                            std::forward<Given>(given)...);
  }
  Fabric& fabric;
  uint32_t to;
};

TEST_P(CallCompletions, OfEveryForm) {
  static std::atomic<bool> named;
  static RemoteMemoryLocator target;
  named = false;
  LocalJob job(job_of(2));
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      const auto room = must(fabric.memory().allocate(kSize));
      target = must(internal::locate_for(fabric, 0, room, 0, kSize));
      named = true;
      must(call(fabric, 0, [] {}));  // makes rank 0 re-check `named`
      return;
    }
    EXPECT_TRUE(fabric.wait([] { return named.load(); }, soon()));
    RDMAMemory memory = must(fabric.memory().allocate(kSize));
    std::memset(memory.get_buffer(), 7, kSize);
    const auto nothing = [] {};
    {
      SCOPED_TRACE("send-based");
      SendBased calls{fabric, 1};
      every_form(fabric, calls, memory, target, nothing);
      with_every_object(
          fabric, 1,
          [&](auto completions) {
            return service_call(
                fabric, 1, [](int n) { ran += n; }, std::move(completions), 1);
          },
          nothing);
    }
    RDMAMessenger messenger(*fabric.this_thread(), 1);
    {
      SCOPED_TRACE("one-sided");
      every_form(fabric, messenger, memory, target, nothing);
    }
    {
      SCOPED_TRACE("aggregated");
      RDMAAggregator aggregator(messenger);
      every_form(fabric, aggregator, memory, target,
                 [&] { EXPECT_EQ(aggregator.flush(), absl::OkStatus()); });
    }
    must(messenger.shutdown(soon()));
    must(fabric.memory().free(std::move(memory)));
  });
}

TEST_P(CallCompletions, OfBroadcasts) {
  LocalJob job(job_of(3));
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    RDMAMemory memory = must(fabric.memory().allocate(kSize));
    std::memset(memory.get_buffer(), 7, kSize);
    RDMAMessengerGlobal messengers(*fabric.this_thread());
    const auto nothing = [] {};
    const auto check = [&](const char* form, const auto& send) {
      SCOPED_TRACE(form);
      with_every_object(fabric, 3, send, nothing);
    };
    const auto with_text = [](const std::string& text, int n) { ran += text == "to all" ? n : 0; };
    check("broadcast", [&](auto completions) {
      return broadcast(fabric, with_text, std::move(completions), std::string("to all"), 1);
    });
    check("broadcast_buffer", [&](auto completions) {
      return broadcast_buffer(fabric, kTake, &memory, 0, kSize, std::move(completions));
    });
    check("one-sided broadcast", [&](auto completions) {
      return messengers.broadcast(with_text, std::move(completions), std::string("to all"), 1);
    });
    check("one-sided broadcast_buffer", [&](auto completions) {
      return messengers.broadcast_buffer(kTake, &memory, 0, kSize, std::move(completions));
    });
    must(messengers.shutdown_all(soon()));
    must(fabric.memory().free(std::move(memory)));
  });
}

// The short form: one object, and the option that names its event.
TEST_P(CallCompletions, AFutureInTheShortForm) {
  LocalJob job(job_of(2));
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    Future<void> none;
    EXPECT_FALSE(none.ready());
    EXPECT_TRUE(absl::IsFailedPrecondition(none.get(soon())));
    Future<void> sent;
    must(call(
        fabric, 1, [](int n) { ran += n; }, sent, 1));
    EXPECT_TRUE(sent.ready());
    EXPECT_EQ(sent.get(soon()), absl::OkStatus());
    Future<void> run;
    must(call<RemoteNotify>(
        fabric, 1, [](int n) { ran += n; }, run, 1));
    EXPECT_EQ(run.get(soon()), absl::OkStatus());
    EXPECT_EQ(ran, 2);
    int result = 0;
    Future<void> answered;
    must(call_return(
        fabric, 1, [] { return 5; }, result, answered));
    EXPECT_EQ(answered.get(soon()), absl::OkStatus());
    EXPECT_EQ(result, 5);
  });
}

TEST_P(CallCompletions, AFailureOfTheCallIsItsConsumedEvent) {
  LocalJob job(job_of(2));
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    const auto fails = [] { throw std::runtime_error("not this one"); };
    RDMAMessenger messenger(*fabric.this_thread(), 1);
    for (const bool one_sided : {false, true}) {
      Future<void> sent;
      Future<void> run;
      absl::Status seen;
      std::atomic<bool> told{false};
      const auto tell = [&](const absl::Status& status) {
        seen = status;
        told = true;
      };
      const auto both = [&] { return on_transmitted(sent) | on_consumed(run); };
      must(one_sided ? messenger.call(fails, both()) : call(fabric, 1, fails, both()));
      EXPECT_EQ(sent.get(soon()), absl::OkStatus());
      const absl::Status status = run.get(soon());
      EXPECT_TRUE(absl::IsInternal(status));
      EXPECT_THAT(std::string(status.message()), HasSubstr("not this one"));
      must(one_sided ? messenger.call(fails, on_consumed(tell))
                     : call(fabric, 1, fails, on_consumed(tell)));
      EXPECT_TRUE(fabric.wait([&] { return told.load(); }, soon()));
      EXPECT_THAT(std::string(seen.message()), HasSubstr("not this one"));
    }
    must(messenger.shutdown(soon()));
  });
}

TEST_P(CallCompletions, ACallThatIsNotAcceptedNotifiesFuturesOnly) {
  LocalJob job(job_of(2));
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    RDMAMessenger nowhere(*fabric.this_thread(), 99);
    const auto never = [](const absl::Status&) { ADD_FAILURE() << "the callback ran"; };
    const auto check = [&](const auto& send) {
      Synchronizer synchronizer;
      Future<void> sent;
      Future<void> run;
      EXPECT_TRUE(absl::IsOutOfRange(send(on_transmitted(sent) | on_consumed(run))));
      EXPECT_TRUE(absl::IsOutOfRange(sent.get(soon())));
      EXPECT_TRUE(absl::IsOutOfRange(run.get(soon())));
      EXPECT_TRUE(absl::IsOutOfRange(send(on_transmitted(synchronizer) | on_consumed(never))));
      EXPECT_TRUE(absl::IsOutOfRange(send(on_transmitted(never) | on_consumed(synchronizer))));
      EXPECT_EQ(synchronizer.operations_left(), 1u);
    };
    check([&](auto completions) {
      return call(
          fabric, 99, [] {}, std::move(completions));
    });
    check([&](auto completions) { return nowhere.call([] {}, std::move(completions)); });
  });
}

// A deferred call has been transmitted when it has been published.
TEST_P(CallCompletions, ADeferredCallIsTransmittedLater) {
  static std::atomic<bool> go;
  go = false;
  LocalJobOptions options = job_of(2);
  LocalJob job(options);
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      // Runs no calls meanwhile.
      EXPECT_TRUE(wait_until(
          [&] {
            if (fabric.options().service_threads == 0) fabric.progress();
            return go.load();
          },
          soon()));
      return;
    }
    RDMAMessenger messenger(*fabric.this_thread(), 1,
                            {.chunks_per_request = 1, .max_chunks = 1, .chunk_bytes = 4096});
    int accepted = 0;
    while (messenger.call<Fail>([] { ++ran; }).ok()) ASSERT_LT(++accepted, 10'000);
    Future<void> sent;
    Events transmitted(fabric);
    Events run(fabric);
    ASSERT_TRUE(
        messenger.call<RetryAsync>([] { ++ran; }, on_transmitted(sent) | on_consumed(run.ok())));
    ASSERT_TRUE(messenger.call<RetryAsync>([] { ++ran; }, on_transmitted(transmitted.ok())));
    EXPECT_FALSE(sent.ready());
    EXPECT_EQ(transmitted.count, 0);
    go = true;
    EXPECT_EQ(sent.get(soon()), absl::OkStatus());
    EXPECT_TRUE(fabric.wait([&] { return transmitted.count == 1 && run.count == 1; }, soon()));
    must(messenger.shutdown(soon()));
    EXPECT_GE(ran, accepted + 1);
  });
  EXPECT_GT(ran, 2);
}

INSTANTIATE_TEST_SUITE_P(On, CallCompletions,
                         ::testing::Values("shm", "sim", "fault_shm", "fault_sim"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace cariama::testing
