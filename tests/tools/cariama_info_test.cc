// Compares the output of cariama-info with this machine and with the defaults of the library.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "dsfabric/fabric.h"
#include "dtutils/allocators/circular_allocator.h"
#include "dtutils/allocators/rdma_allocator.h"
#include "dtutils/queue_pair.h"
#include "dtutils/system_info.h"
#include "riutils/messenger_options.h"
#include "tests/tools/cariama_info_rows.h"

namespace cariama {
namespace {

using ::cariama::testing::InfoOutcome;
using ::cariama::testing::InfoRow;
using ::cariama::testing::InfoRows;
using ::cariama::testing::run_info;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(CariamaInfo, DescribesThisMachine) {
  const InfoRows rows;
  const SystemInfo info = query_system_info();
  EXPECT_EQ(rows.row("kernel").value.string(), info.kernel);
  EXPECT_EQ(rows.number("memory"), std::to_string(info.memory_total_bytes));
  EXPECT_EQ(rows.row("memory").unit, "bytes");
  EXPECT_EQ(rows.number("cpus"), std::to_string(info.cpus.size()));
  EXPECT_EQ(rows.number("base_page"), std::to_string(info.page_bytes));
  // Machines that run these tests permit it, and shm needs it for memory that the user allocated.
  EXPECT_TRUE(std::get<bool>(rows.row("cross_memory_attach").value.value));
  EXPECT_EQ(rows.number("cgroup_version"), std::to_string(info.cgroup.version));
  EXPECT_EQ(rows.all("numa_memory").size(), info.nodes.size());
  for (const NumaNodeInfo& node : info.nodes) {
    EXPECT_EQ(rows.number("numa_memory", {{"node", std::to_string(node.id)}}),
              std::to_string(node.total_bytes));
  }
  EXPECT_EQ(rows.all("huge_pages").size(), info.huge_pages.size());
  EXPECT_EQ(rows.row("transparent_huge_pages", {{"setting", "enabled"}}).value.string(),
            info.transparent.enabled);
  // A missing limit is printed as null, never as a huge number.
  const bool unlimited = info.memory_lock.soft_bytes == kUnlimited;
  const InfoRow& lock = rows.row("memory_lock", {{"limit", "soft"}});
  EXPECT_EQ(std::holds_alternative<std::nullptr_t>(lock.value.value), unlimited);
  if (!unlimited) {
    EXPECT_EQ(lock.value.number_text(), std::to_string(info.memory_lock.soft_bytes));
  }
}

TEST(CariamaInfo, ShowsThePagesThatProgramsGet) {
  const InfoRows rows;
  const std::set<std::string> kinds = {"2 MiB", "transparent", "base"};
  for (const int node : numa_nodes()) {
    for (const char* memory : {"shared", "private"}) {
      const std::string kind =
          rows.row("pages_obtained", {{"memory", memory}, {"node", std::to_string(node)}})
              .value.string();
      EXPECT_TRUE(kinds.count(kind)) << kind;
    }
  }
}

TEST(CariamaInfo, ShowsTransports) {
  const InfoRows rows;
  EXPECT_TRUE(std::get<bool>(rows.row("transport_works", {{"transport", "shm"}}).value.value));
  EXPECT_EQ(rows.row("max_message", {{"transport", "shm"}}).unit, "bytes");
  const InfoRows forced("CARIAMA_TRANSPORT=shm");
  EXPECT_EQ(forced.row("transport_by_default").value.string(), "shm");
  EXPECT_EQ(forced.row("environment", {{"variable", "CARIAMA_TRANSPORT"}}).value.string(), "shm");
}

TEST(CariamaInfo, ShowsTheEnvironmentOfJobsWithoutSecrets) {
  const InfoRows rows("CARIAMA_LISTEN=10.77.0.0/24 CARIAMA_THREADS=3 CARIAMA_JOB_SECRET=hush");
  EXPECT_EQ(rows.row("environment", {{"variable", "CARIAMA_LISTEN"}}).value.string(),
            "10.77.0.0/24");
  EXPECT_EQ(rows.row("environment", {{"variable", "CARIAMA_THREADS"}}).value.string(), "3");
  for (const InfoRow& row : rows.all("environment")) EXPECT_NE(row.value.string(), "hush");
}

TEST(CariamaInfo, ShowsEffectiveOptions) {
  const InfoRows rows("CARIAMA_MEMORY_BUDGET=3MiB");
  EXPECT_EQ(rows.number("memory_budget"), "3145728");
  const auto option = [&rows](const std::string& of, const std::string& name) {
    return rows.number("option", {{"of", of}, {"option", name}});
  };
  EXPECT_EQ(option("RDMAAllocator", "chunk_bytes"),
            std::to_string(RDMAAllocatorOptions().chunk_bytes));
  EXPECT_EQ(option("CircularAllocator", "max_units"),
            std::to_string(CircularAllocatorOptions().max_units));
  EXPECT_EQ(option("QueuePair", "send_depth"), std::to_string(QueuePairOptions().send_depth));
  EXPECT_EQ(option("connect", "retry_count"), std::to_string(ConnectOptions().retry_count));
  EXPECT_EQ(option("Fabric", "receive_unit_bytes"),
            std::to_string(FabricOptions().receive_unit_bytes));
  EXPECT_EQ(option("Fabric", "heartbeat"), std::to_string(FabricOptions().heartbeat.count()));
  EXPECT_EQ(option("Messenger", "chunk_bytes"), std::to_string(MessengerOptions().chunk_bytes));
  EXPECT_EQ(option("Messenger", "max_chunks"), std::to_string(MessengerOptions().max_chunks));
}

TEST(CariamaInfo, EachShortfallHasItsRemedy) {
  const InfoRows rows("CARIAMA_MEMORY_BUDGET=plenty");
  std::set<std::string> names;
  for (const InfoRow& row : rows.all("shortfall")) {
    EXPECT_FALSE(row.value.string().empty());
    EXPECT_FALSE(row.params.at("remedy").empty()) << row.value.string();
    names.insert(row.params.at("of"));
  }
  for (const Shortfall& shortfall : find_shortfalls(query_system_info())) {
    EXPECT_TRUE(names.count(shortfall.name)) << shortfall.name;
  }
  EXPECT_TRUE(names.count("budget.variable"))
      << "a diagnostic that is reported while the program runs";
}

TEST(CariamaInfo, NamesInvalidEnvironmentVariables) {
  const InfoRows rows("CARIAMA_TRANSPORT=pigeon");
  const auto shortfalls = rows.all("shortfall");
  const bool named = std::any_of(shortfalls.begin(), shortfalls.end(), [](const InfoRow& row) {
    return row.params.at("remedy").find("pigeon") != std::string::npos;
  });
  EXPECT_TRUE(named);
}

// The lines of a text.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(CariamaInfo, BeginsWithAVerdictOfThreeLines) {
  const InfoRows rows;
  const InfoOutcome outcome = run_info("2>&1");
  EXPECT_EQ(outcome.exit_code, 0);
  const std::vector<std::string> lines = lines_of(outcome.output);
  ASSERT_GE(lines.size(), 3u);
  EXPECT_THAT(
      lines[0],
      StartsWith("Transport: " + rows.row("transport_within_machine").value.string() +
                 " between processes of this machine; " +
                 rows.row("transport_between_machines").value.string() + " between machines ("));
  EXPECT_THAT(lines[1], StartsWith("Memory:    "));
  EXPECT_THAT(lines[1], HasSubstr(" available; registered memory gets "));
  EXPECT_THAT(lines[2], StartsWith("Degraded:  "));
  const std::vector<InfoRow> shortfalls = rows.all("shortfall");
  ASSERT_GE(lines.size(), 3 + 2 * shortfalls.size()) << "the remedies follow";
  for (size_t i = 0; i < shortfalls.size(); ++i) {
    EXPECT_THAT(lines[2], HasSubstr(shortfalls[i].params.at("of")));
    EXPECT_EQ(lines[3 + 2 * i], "  " + shortfalls[i].value.string());
    EXPECT_EQ(lines[4 + 2 * i], "      -> " + shortfalls[i].params.at("remedy"));
  }
  if (shortfalls.empty()) {
    EXPECT_EQ(lines[2], "Degraded:  nothing");
  }
}

TEST(CariamaInfo, TellsTheTransportsOfJobs) {
  const InfoRows forced("CARIAMA_TRANSPORT=shm");
  EXPECT_EQ(forced.row("transport_within_machine").value.string(), "shm");
  EXPECT_EQ(forced.row("transport_between_machines").value.string(), "none");
  EXPECT_THAT(run_info("2>&1", "CARIAMA_TRANSPORT=shm").output,
              StartsWith("Transport: shm between processes of this machine; none between machines "
                         "(CARIAMA_TRANSPORT is 'shm')\n"));
  const InfoRows invalid("CARIAMA_TRANSPORT=pigeon");
  EXPECT_EQ(invalid.row("transport_within_machine").value.string(), "none");
  EXPECT_EQ(invalid.row("transport_between_machines").value.string(), "none");
  EXPECT_EQ(InfoRows("CARIAMA_TRANSPORT=").row("transport_within_machine").value.string(), "shm");
}

TEST(CariamaInfo, TextForPeopleHasTheSameFacts) {
  const InfoOutcome outcome = run_info("2>&1");
  EXPECT_EQ(outcome.exit_code, 0);
  for (const char* heading :
       {"Machine", "Limits", "NUMA", "Pages", "RDMA devices", "Transports", "Environment"}) {
    EXPECT_THAT(outcome.output, HasSubstr("\n" + std::string(heading) + "\n"));
  }
  EXPECT_THAT(outcome.output, HasSubstr(query_system_info().kernel));
}

TEST(CariamaInfo, ShowsOptionsOnRequestOnly) {
  EXPECT_THAT(run_info("2>&1").output, Not(HasSubstr("Options in effect")));
  const InfoOutcome outcome = run_info("--options 2>&1", "CARIAMA_MEMORY_BUDGET=3MiB");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.output, StartsWith("Environment\n"));
  EXPECT_THAT(outcome.output, HasSubstr("\nOptions in effect\n"));
  EXPECT_THAT(outcome.output, ContainsRegex("memory budget +3 MiB"));
  // Every option of the JSON, which is complete with and without --options.
  const InfoRows rows;
  EXPECT_GE(rows.all("option").size(), 40u);
  for (const InfoRow& row : rows.all("option")) {
    EXPECT_THAT(outcome.output, HasSubstr("  option, " + row.params.at("of") + ", " +
                                          row.params.at("option") + " "));
  }
  EXPECT_EQ(lines_of(run_info("--json --options").output).size(),
            lines_of(run_info("--json").output).size());
}

TEST(CariamaInfo, DescribesAJob) {
  const InfoOutcome outcome = run_info("-n 2 -t 2 --job 2>&1", "CARIAMA_TRANSPORT=shm");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, ContainsRegex("option, job, processes +2"));
  EXPECT_THAT(outcome.output, ContainsRegex("option, job, threads +2"));
  EXPECT_THAT(outcome.output, ContainsRegex("option, RDMAAllocator, chunk_bytes +64 KiB"));
  for (const char* const pair : {"rank 0, to 1", "rank 1, to 0"}) {
    EXPECT_THAT(outcome.output, ContainsRegex(std::string("path, ") + pair + " +shm"));
    EXPECT_THAT(outcome.output, ContainsRegex(std::string("arrival, ") + pair + " +mapped"));
  }
  EXPECT_THAT(outcome.output, ContainsRegex("memory per peer, rank 1 +[1-9]"));
  EXPECT_EQ(run_info("--preset paper 2>&1").exit_code, 2);
  EXPECT_EQ(run_info("--job --preset none 2>&1").exit_code, 2);
}

TEST(CariamaInfo, ExitCodesTellUseAndFailure) {
  const InfoOutcome help = run_info("--help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.output, HasSubstr("--json"));
  for (const char* wrong :
       {"--jsom", "--json=yes", "extra", "--json extra", "--options extra", "''"}) {
    const InfoOutcome outcome = run_info(std::string(wrong) + " 2>&1");
    EXPECT_EQ(outcome.exit_code, 2) << wrong;
    EXPECT_THAT(outcome.output, HasSubstr("unknown argument"));
  }
  const InfoOutcome full = run_info("--json 2>&1 >/dev/full");
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_THAT(full.output, HasSubstr("cannot write"));
  for (const char* arguments : {"", "--options", "--help", "--version"}) {
    EXPECT_EQ(run_info(std::string(arguments) + " 2>/dev/null >/dev/full").exit_code, 1)
        << arguments;
  }
}

}  // namespace
}  // namespace cariama
