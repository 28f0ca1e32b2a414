#include "dtutils/sim/fabric.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "dtutils/random.h"
#include "dtutils/sim/sim_queue_pair.h"

namespace cariama::sim {
namespace {

uint64_t next_identity() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

// Events of one flow at the same time keep their order. A request and the packets that follow from
// it belong to the flow of their queue pair; the constants below separate the flows of ports and
// timers.
constexpr uint64_t kPortFlow = uint64_t{1} << 40;
constexpr uint64_t kTimerFlow = uint64_t{2} << 40;

}  // namespace

Fabric::Fabric(const SimOptions& options)
    : options_(options), identity_(next_identity()), random_(options.seed) {
  queue_pairs_.push_back(nullptr);  // number 0 is never used
}

void Fabric::schedule(SimTime time, uint64_t flow, Event event) {
  event.time = time;
  event.tie = Random::mix(Random::mix(options_.seed + flow) ^ static_cast<uint64_t>(time.count()));
  event.sequence = stamp();
  events_.push_back(std::move(event));
  std::push_heap(events_.begin(), events_.end(), Later());
  activity_.ring();
}

void Fabric::schedule(SimTime time, EventKind kind, std::unique_ptr<Packet> packet) {
  const uint64_t flow = packet->source;
  Event event;
  event.kind = kind;
  event.packet = std::move(packet);
  schedule(time, flow, std::move(event));
}

bool Fabric::step(SimTime limit) {
  if (events_.empty() || events_.front().time > limit) return false;
  std::pop_heap(events_.begin(), events_.end(), Later());
  Event event = std::move(events_.back());
  events_.pop_back();
  execute(std::move(event));
  return true;
}

void Fabric::execute(Event event) {
  now_ = event.time;
  ++statistics_.events;
  const auto trace = [this](uint64_t value) {
    trace_hash_ = Random::mix(trace_hash_ ^ Random::mix(value));
  };
  trace(static_cast<uint64_t>(now_.count()));
  trace(uint64_t{event.id} << 8 | static_cast<uint64_t>(event.kind) << 4 |
        static_cast<uint64_t>(event.timer));
  if (event.packet != nullptr) {
    const Packet& packet = *event.packet;
    trace(uint64_t{packet.source} << 32 | packet.target);
    trace(packet.psn << 16 | static_cast<uint64_t>(packet.kind) << 12 |
          static_cast<uint64_t>(packet.opcode) << 8 | static_cast<uint64_t>(packet.status));
    trace(packet.bytes);
  }

  switch (event.kind) {
    case EventKind::kPort:
      run_port(*endpoints_[event.id]);
      break;
    case EventKind::kArrival:
      arrive(std::move(event.packet));
      break;
    case EventKind::kDelivery:
      deliver(std::move(event.packet));
      break;
    case EventKind::kTimer:
      if (SimQueuePair* owner = queue_pair(event.id)) owner->timer(event.timer, event.argument);
      break;
  }
}

Endpoint* Fabric::add_endpoint() {
  endpoints_.push_back(std::make_unique<Endpoint>());
  endpoints_.back()->id = endpoint_count() - 1;
  return endpoints_.back().get();
}

void Fabric::heal() {
  for (auto& endpoint : endpoints_) endpoint->island = 0;
}

uint32_t Fabric::add_queue_pair(SimQueuePair* queue_pair) {
  queue_pairs_.push_back(queue_pair);
  return static_cast<uint32_t>(queue_pairs_.size() - 1);
}

void Fabric::make_ready(SimQueuePair& queue_pair) {
  Endpoint& endpoint = queue_pair.endpoint();
  if (!endpoint.alive || queue_pair.in_turn || !queue_pair.wants_to_transmit()) return;
  queue_pair.in_turn = true;
  endpoint.ready.push_back(queue_pair.number());
  schedule_port(endpoint);
}

void Fabric::schedule_port(Endpoint& endpoint) {
  if (endpoint.port_scheduled) return;
  endpoint.port_scheduled = true;
  Event event;
  event.kind = EventKind::kPort;
  event.id = endpoint.id;
  schedule(std::max(now_, endpoint.transmit_free), kPortFlow | endpoint.id, std::move(event));
}

// Sends one message, if the port is free and a queue pair has one.
void Fabric::run_port(Endpoint& endpoint) {
  endpoint.port_scheduled = false;
  if (!endpoint.alive) return;
  if (endpoint.transmit_free <= now_) {  // false: a READ's response has reserved the port meanwhile
    while (!endpoint.ready.empty()) {
      std::swap(endpoint.ready[random_below(endpoint.ready.size())], endpoint.ready.back());
      const uint32_t number = endpoint.ready.back();
      SimQueuePair* chosen = queue_pair(number);
      if (chosen != nullptr && chosen->wants_to_transmit()) {
        chosen->transmit_next();
        break;
      }
      endpoint.ready.pop_back();
      if (chosen != nullptr) chosen->in_turn = false;
    }
  }
  if (!endpoint.ready.empty()) schedule_port(endpoint);
}

SimTime Fabric::time_on_wire(uint64_t bytes) const {
  if (options_.gigabytes_per_second <= 0) return SimTime(0);
  return SimTime(static_cast<int64_t>(
      std::ceil(static_cast<double>(bytes) * 1000.0 / options_.gigabytes_per_second)));
}

SimTime Fabric::jitter() {
  const auto bound = static_cast<uint64_t>(options_.jitter.count());
  return SimTime(bound == 0 ? 0 : static_cast<int64_t>(random_below(bound + 1)));
}

void Fabric::transmit(Endpoint& from, std::unique_ptr<Packet> packet) {
  const bool request = packet->kind == PacketKind::kRequest;
  const uint64_t bytes = packet->payload.size();
  const SimTime start = std::max(now_, from.transmit_free);
  from.transmit_free = start + std::max(options_.message_gap, time_on_wire(bytes));
  ++from.statistics.messages_sent;
  from.statistics.bytes_sent += bytes;
  statistics_.bytes += bytes;
  if (request) ++statistics_.messages;

  packet->from = from.id;
  packet->sent = stamp();
  SimTime arrival = start + (request ? options_.latency : options_.ack_latency) + jitter();
  if (request) {  // requests of a queue pair stay in order
    SimTime& last = queue_pair(packet->source)->last_arrival;
    last = arrival = std::max(arrival, last);
  }
  schedule(arrival, EventKind::kArrival, std::move(packet));
}

void Fabric::deliver_at(SimTime time, std::unique_ptr<Packet> packet) {
  packet->sent = stamp();
  schedule(time, EventKind::kDelivery, std::move(packet));
}

// The first byte has arrived; the rest is received as soon as the port of the target permits.
void Fabric::arrive(std::unique_ptr<Packet> packet) {
  SimQueuePair* target = queue_pair(packet->target);
  SimTime end = now_;
  if (target != nullptr && target->endpoint().alive) {
    Endpoint& endpoint = target->endpoint();
    const SimTime wire = time_on_wire(packet->payload.size());
    const SimTime start = std::max(now_, endpoint.receive_free);
    endpoint.receive_free = start + std::max(options_.message_gap, wire);
    end = start + wire;
    if (packet->kind == PacketKind::kRequest) end = target->delivery_time(*packet, end);
  }
  schedule(end, EventKind::kDelivery, std::move(packet));
}

void Fabric::note_arrival(Endpoint& endpoint) {
  if (!std::exchange(endpoint.in_arrivals, true)) arrivals_.push_back(endpoint.id);
}

std::vector<uint32_t> Fabric::take_arrivals() {
  for (const uint32_t id : arrivals_) endpoints_[id]->in_arrivals = false;
  return std::exchange(arrivals_, {});
}

void Fabric::deliver(std::unique_ptr<Packet> packet) {
  SimQueuePair* target = queue_pair(packet->target);
  const bool reached = target != nullptr && target->endpoint().alive &&
                       target->endpoint().island == endpoints_[packet->from]->island;
  if (reached && packet->kind != PacketKind::kPiece) {
    note_arrival(target->endpoint());
    ++target->endpoint().statistics.messages_received;
    target->endpoint().statistics.bytes_received += packet->payload.size();
  }
  switch (packet->kind) {
    case PacketKind::kRequest: {
      if (reached && target->receive_request(*packet)) return;
      ++statistics_.lost;
      SimQueuePair* source = queue_pair(packet->source);
      if (source != nullptr) source->request_lost(*packet);
      return;
    }
    case PacketKind::kPiece:
      if (reached) target->receive_piece(*packet);
      return;
    case PacketKind::kReadResponse:
    case PacketKind::kAcknowledgement:
    case PacketKind::kReceiverNotReady:
      if (reached) {
        target->receive_response(*packet);
      } else {
        ++statistics_.lost;
        if (target != nullptr) target->request_lost(*packet);
      }
      return;
  }
}

void Fabric::set_timer(SimTime time, TimerKind kind, uint32_t queue_pair, uint64_t argument) {
  Event event;
  event.kind = EventKind::kTimer;
  event.timer = kind;
  event.id = queue_pair;
  event.argument = argument;
  schedule(time, kTimerFlow | queue_pair, std::move(event));
}

uint32_t Fabric::add_registration(const Registration& registration, uint64_t* generation) {
  uint32_t slot;
  if (free_registrations_.empty()) {
    slot = static_cast<uint32_t>(registrations_.size());
    registrations_.emplace_back();
  } else {
    slot = free_registrations_.back();
    free_registrations_.pop_back();
  }
  // The largest number that fits into a key; 0 is never used.
  constexpr uint64_t kGenerations = (uint64_t{1} << 31) - 1;
  *generation = registrations_[slot].generation % kGenerations + 1;
  registrations_[slot] = registration;
  registrations_[slot].generation = *generation;
  return slot;
}

void Fabric::remove_registration(uint32_t slot) {
  registrations_[slot].address = nullptr;
  registrations_[slot].domain = nullptr;
  free_registrations_.push_back(slot);
}

const Fabric::Registration* Fabric::find(uint64_t key, const ProtectionDomain* domain,
                                         uint64_t address, uint64_t bytes) const {
  const uint64_t slot = key >> 32;
  if (slot >= registrations_.size()) return nullptr;
  const Registration& found = registrations_[slot];
  if (found.address == nullptr || found.domain != domain ||
      found.generation != (key & 0xffffffffu) >> 1) {
    return nullptr;
  }
  const auto base = reinterpret_cast<uint64_t>(found.address);
  // In this order of the tests no sum can overflow.
  if (address < base || bytes > found.length || address - base > found.length - bytes) {
    return nullptr;
  }
  return &found;
}

}  // namespace cariama::sim
