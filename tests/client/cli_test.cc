// The program `ibid` against a real server and a fake worker: what it prints, and its exit codes.
#include <fstream>
#include <sstream>
#include <thread>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/client/cluster.h"
#include "tests/client/fake_worker.h"
#include "tests/harness/outward_address.h"
#include "tests/harness/process.h"
#include "transport/admin_channel.h"

namespace ibid {
namespace {

using testing::HasSubstr;
using testing::Not;

class CliTest : public testing::Test {
 protected:
  CliTest() : cluster_(1), worker_(TestSpec(), kTestBlockTokens) {
    client_ = cluster_.Connect();
    ns_ = *client_->OpenNamespace(TestSpec());
  }

  RunResult Ibid(std::vector<std::string> arguments, bool with_addresses = true) {
    arguments.insert(arguments.begin(), IBID_BIN_DIR "/ibid");
    if (with_addresses) arguments.push_back("--servers=" + cluster_.proxy(0).address());
    auto result = ::ibid::Run(arguments, absl::Seconds(30));
    IBID_CHECK(result.ok()) << result.status().ToString();
    return *result;
  }
  std::string worker() const { return "--worker=" + worker_.address(); }

  Cluster cluster_;
  FakeWorker worker_;
  std::unique_ptr<Client> client_;
  NamespaceHandle ns_;
};

TEST_F(CliTest, HelpIsThereForTheProgramAndEachCommand) {
  EXPECT_EQ(Ibid({}, false).exit_code, 2);
  const RunResult all = Ibid({"--help"}, false);
  EXPECT_EQ(all.exit_code, 0);
  for (const char* command :
       {"status", "stats", "match", "generate", "drop", "watch", "verify", "flush", "drain"}) {
    EXPECT_THAT(all.out, HasSubstr(command));
    const RunResult help = Ibid({command, "--help"}, false);
    EXPECT_EQ(help.exit_code, 0) << command;
    EXPECT_THAT(help.out, HasSubstr("Exit codes"));
    EXPECT_THAT(help.out, HasSubstr("--servers"));
  }
  const std::string help = Ibid({"match", "--help"}, false).out;
  EXPECT_THAT(help, HasSubstr("--namespace="));
  EXPECT_EQ(Ibid({"help", "match"}, false).out, help);
}

TEST_F(CliTest, FlagsCanComeFromAFile) {
  TempFolder folder;
  std::ofstream(folder / "flags") << "# the cluster\n--json\n";
  const RunResult result = Ibid({"status", "--flagfile=" + (folder / "flags")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["servers"].size(), 1u);
}

TEST_F(CliTest, WrongUsageIsOneLineAndCodeTwo) {
  const std::vector<std::vector<std::string>> lines = {
      {"fly"},
      {"status", "--colour=red"},
      {"status", "extra"},
      {"match"},
      {"match", "--tokens=one", "--namespace=00"},
      {"generate"},
      {"generate", "--prompt=x", "--store=maybe"},
      {"match", "--tokens=1", "--salt=s", "--namespace=" + std::string(64, '0')},
      {"drop"},
      {"drop", "--everything"},
      {"drop", "--namespace=12"},
      {"pin"},
      {"pin", "--tokens=1", "--namespace=" + std::string(64, '0'), "--priority=none"},
      {"pin", "--tokens=1", "--namespace=" + std::string(64, '0'), "--for=0s"},
      {"pin", "--tokens=1", "--namespace=" + std::string(64, '0'), "--pin=0"},
      {"pin", "--tokens=1", "--namespace=" + std::string(64, '0'), "--block_tokens=8"},
      {"unpin"},
      {"quota", "--tenant=a"},
      {"quota", "--publish_bytes_per_second_max=5"},
      {"quota", "--tenant=a", "--publish_bytes_per_second_max=fast"},
      {"quota", "--default", "--publish_bytes_per_second_max=default"},
      {"quota", "--tenant=a", "--host_bytes_max=much"},
      {"quota", "--tenant=a", "--host_bytes_max=5", "--disk_bytes_max=default"},
      {"quota", "--reload", "--tenant=a"},
      {"watch", "--namespace=12"},
      {"watch", "--for=-1s"},
      {"status", "--servers=nowhere"},
      {"status", "--timeout=soon"},
      {"status", "--timeout=-1s"},
      {"generate", "--prompt_file=/"},
      {"generate", "--prompt_file=/nowhere"},
      {"generate", "--prompt_file=/dev/zero"},
      {"generate", "--prompt=\xff"},
      {"generate", "--prompt=x", "--salt=cut\xc3"},
      {"generate", "--prompt=x", "--stop=ok", "--stop=\xed\xa0\x80"},
      {"match", "--text=overlong\xc0\xaf"},
      {"match", "--tokens=1", "--adapter=\xf4\x90\x80\x80"},
      {"replay"},
      {"replay", "/nowhere.jsonl"},
      {"replay", "/tmp"},
      {"replay", "--servers=127.0.0.1:1", "x"},
      {"replay", "x", "--policies=fifo"},
      {"replay", "x", "--capacities=2"},
      {"replay", "x", "--capacities=1GiB"},
      {"replay", "x", "--capacities="},
      {"replay", "x", "--capacities=0.1", "--sweep"},
      {"replay", "x", "--layout=layers=3"},
      {"replay", "x", "--plot=x.png"},
      {"generate", "--prompt"}};
  for (const auto& line : lines) {
    const RunResult result = Ibid(line, false);
    EXPECT_EQ(result.exit_code, 2) << line[0] << " " << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
  }
}

TEST_F(CliTest, ReplaySaysWhatACacheWouldHaveHeldAndDrawsIt) {
  TempFolder folder;
  const std::string trace = folder / "small.jsonl";
  std::ofstream(trace) << R"({"timestamp": 0, "input_length": 20, "hash_ids": [0, 1]})"
                       << "\n"
                       << R"({"timestamp": 1, "input_length": 15, "hash_ids": [0, 2]})"
                       << "\n";
  const std::string plot = folder / "replay.svg";
  const std::vector<std::string> ask = {"replay", trace, "--block_tokens=10", "--capacities=1,0.4",
                                        "--layout=layers=3;kv_heads=2;k_dim=64;v_dim=64;dtype=bf16;"
                                        "block_tokens=16;order=hnd;scales=none"};
  std::vector<std::string> table = ask, json = ask;
  table.push_back("--plot=" + plot);
  const RunResult result = Ibid(table, false);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("small: 2 requests for 35 tokens"));
  EXPECT_THAT(result.out, HasSubstr("hazard"));
  EXPECT_THAT(result.out, HasSubstr("infinite"));
  std::ifstream svg(plot);
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(svg), {}), HasSubstr("</svg>"));
  json.push_back("--json");
  json.push_back("--policies=lru");
  const auto rows = nlohmann::json::parse(Ibid(json, false).out)["rows"];
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[1]["policy"], "lru");
  EXPECT_EQ(rows[1]["capacity_bytes"], 3 * 10 * 3 * 2 * 2 * 64 * 2);
  EXPECT_DOUBLE_EQ(rows[1]["token_hit_ratio"], 10.0 / 35);
  EXPECT_THAT(Ibid({"replay", "--help"}, false).out, Not(HasSubstr("--servers=")));
}

TEST_F(CliTest, StatusShowsServersAndTheWorker) {
  PublishChain(client_.get(), ns_, TestChain(ns_.id, 4));
  const RunResult text = Ibid({"status", worker()});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("reachable"));
  EXPECT_THAT(text.out, HasSubstr("host"));
  EXPECT_THAT(text.out, HasSubstr("4 blocks"));
  EXPECT_THAT(text.out, HasSubstr(DigestToHex(ns_.id.digest)));
  const auto json = nlohmann::json::parse(Ibid({"status", "--json", worker()}).out);
  EXPECT_EQ(json["servers"][0]["published_blocks"], 4);
  EXPECT_EQ(json["worker"]["block_tokens"], kTestBlockTokens);
  EXPECT_THAT(Ibid({"stats"}).out, HasSubstr("host.evictions"));
}

TEST_F(CliTest, TopShowsTheLastSecondAsLinesAndAsJson) {
  PublishChain(client_.get(), ns_, TestChain(ns_.id, 4));
  const RunResult text = Ibid({"top", "--count=1"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("serving"));
  EXPECT_THAT(text.out, HasSubstr("4 blocks"));
  EXPECT_THAT(text.out, HasSubstr("sessions"));
  EXPECT_EQ(text.out.find('\x1b'), std::string::npos) << "no terminal, no colours";
  const RunResult lines = Ibid({"top", "--count=2", "--json"});
  EXPECT_EQ(std::count(lines.out.begin(), lines.out.end(), '\n'), 2);
  const auto json = nlohmann::json::parse(lines.out.substr(0, lines.out.find('\n')));
  EXPECT_EQ(json["servers"][0]["published_blocks"], 4);
  EXPECT_EQ(json["servers"][0]["last_interval"]["published_blocks"], 0);
  EXPECT_GT(json["servers"][0]["last_interval"]["methods"]["GetStats"]["calls_per_second"], 0);
  EXPECT_EQ(Ibid({"top", "--count=1", "--servers=127.0.0.1:1"}, false).exit_code, 3);
}

TEST_F(CliTest, VerifyShowsLinesWhereThereIsNoTerminalAndTheResultAsJson) {
  PublishChain(client_.get(), ns_, TestChain(ns_.id, 4));
  const RunResult text = Ibid({"verify"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("[########################] 100.0%, 4 of 4 copies"));
  EXPECT_EQ(text.out.find('\r'), std::string::npos);
  const auto json = nlohmann::json::parse(Ibid({"verify", "--json", "--mib_per_second=1000"}).out);
  EXPECT_EQ(json["servers"][0]["checked_copies"], 4);
  EXPECT_EQ(json["servers"][0]["damaged_host_copies"], 0);
}

TEST_F(CliTest, ADamagedBlockMakesVerifyExitWithFour) {
  const auto chain = TestChain(ns_.id, 2);
  PublishChain(client_.get(), ns_, chain);
  cluster_.server(0).store().Acquire(ns_.id, chain[1].key, [](absl::StatusOr<BlockRef> ref) {
    ASSERT_TRUE(ref.ok());
    const_cast<std::byte&>(ref->payload()[5]) ^= std::byte{1};
  });
  const RunResult verify = Ibid({"verify"});
  EXPECT_EQ(verify.exit_code, 4);
  EXPECT_THAT(verify.out, HasSubstr("1 bad"));
  EXPECT_EQ(Ibid({"verify"}).exit_code, 0) << "it was dropped";
}

TEST_F(CliTest, DrainAndFlushSayWhatIsOnlyInMemory) {
  PublishChain(client_.get(), ns_, TestChain(ns_.id, 4));
  const RunResult flush = Ibid({"flush"});
  EXPECT_EQ(flush.exit_code, 0) << flush.err;
  EXPECT_THAT(flush.out, HasSubstr("flushed: 0 blocks written to disk, 4 only in memory"));
  EXPECT_FALSE(cluster_.server(0).is_draining());
  const auto json = nlohmann::json::parse(Ibid({"drain", "--json"}).out);
  EXPECT_EQ(json["servers"][0]["remaining_blocks"], 4);
  EXPECT_TRUE(cluster_.server(0).is_draining());
  const RunResult undone = Ibid({"drain", "--undo"});
  EXPECT_EQ(undone.exit_code, 0) << undone.err;
  EXPECT_THAT(undone.out, HasSubstr("takes blocks again"));
  EXPECT_FALSE(cluster_.server(0).is_draining());
  for (const char* command : {"drain", "flush", "verify"}) {
    const RunResult nobody = Ibid({command, "--servers=127.0.0.1:1"}, false);
    EXPECT_EQ(nobody.exit_code, 3) << command;
    EXPECT_EQ(std::count(nobody.err.begin(), nobody.err.end(), '\n'), 1) << nobody.err;
  }
}

TEST_F(CliTest, APinIsMadeListedAndTakenBack) {
  const std::string ns = "--namespace=" + DigestToHex(ns_.id.digest);
  const std::string tokens = "--tokens=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17";  // two blocks
  const auto chain = MakeChain(
      ns_.id, std::vector<uint32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
      kTestBlockTokens, false);
  PublishChain(client_.get(), ns_, std::span(chain).first(1));
  EXPECT_EQ(Ibid({"pin", "--list"}).exit_code, 1);
  const RunResult pinned = Ibid({"pin", ns, tokens, "--block_tokens=8", "--pin=00000000000000a1",
                                 "--priority=high", "--for=1h"});
  EXPECT_EQ(pinned.exit_code, 0) << pinned.err;
  EXPECT_THAT(pinned.out, HasSubstr("pin 00000000000000a1"));
  EXPECT_THAT(pinned.out, HasSubstr("1 of 2 blocks stored; it ends with a restart"));
  const RunResult another = Ibid({"pin", ns, tokens, "--block_tokens=8", "--json"});
  EXPECT_EQ(another.exit_code, 0) << another.err;
  const auto json = nlohmann::json::parse(another.out);
  EXPECT_EQ(json["servers"][0]["stored_blocks"], 1);
  const std::string id = json["servers"][0]["pin"];

  const RunResult list = Ibid({"pin", "--list"});
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_THAT(list.out, HasSubstr("high      1 of 2 blocks stored, 1 in memory, 0 on disk, "));
  EXPECT_THAT(list.out, HasSubstr(id));
  EXPECT_THAT(list.out, HasSubstr("until unpinned"));
  EXPECT_THAT(Ibid({"status"}).out, HasSubstr("pins 2, which keep"));
  EXPECT_EQ(
      nlohmann::json::parse(Ibid({"pin", "--list", "--json"}).out)["servers"][0]["pins"].size(),
      2u);

  EXPECT_EQ(Ibid({"unpin", "--pin=" + id}).exit_code, 0);
  EXPECT_EQ(Ibid({"unpin", "--pin=" + id}).exit_code, 1);
  EXPECT_EQ(Ibid({"unpin", "--pin=a1"}).exit_code, 0);
  EXPECT_EQ(Ibid({"pin", "--list"}).exit_code, 1);

  const RunResult unknown =
      Ibid({"pin", "--namespace=" + std::string(64, '0'), tokens, "--block_tokens=8"});
  EXPECT_EQ(unknown.exit_code, 4) << unknown.err;
  EXPECT_THAT(unknown.err, HasSubstr("is not open"));
}

TEST_F(CliTest, AQuotaIsSetAndShown) {
  EXPECT_EQ(Ibid({"quota", "--tenant=batch", "--publish_bytes_per_second_max=1048576"}).exit_code,
            0);
  EXPECT_EQ(Ibid({"quota", "--default", "--publish_bytes_per_second_max=2097152"}).exit_code, 0);
  const RunResult shown = Ibid({"quota"});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("default 2.0 MiB/s to publish"));
  EXPECT_THAT(shown.out, HasSubstr("batch                nothing stored; 1.0 MiB/s; published"));
  // What is not named stays.
  EXPECT_EQ(Ibid({"quota", "--tenant=batch", "--host_bytes_max=3145728", "--gpu_bytes_max=none"})
                .exit_code,
            0);
  EXPECT_THAT(Ibid({"quota"}).out,
              HasSubstr("batch                host 0 B of 3.0 MiB; 1.0 MiB/s; published"));
  EXPECT_EQ(Ibid({"quota", "--tenant=batch", "--publish_bytes_per_second_max=default"}).exit_code,
            0);
  const auto json = nlohmann::json::parse(Ibid({"quota", "--json"}).out);
  EXPECT_EQ(json["servers"][0]["default"]["publish_bytes_per_second_max"], 2097152);
  EXPECT_EQ(json["servers"][0]["tenants"].back()["host_used_bytes"], 0);
  EXPECT_EQ(Ibid({"quota", "--default", "--publish_bytes_per_second_max=none"}).exit_code, 0);
  EXPECT_THAT(Ibid({"quota"}).out, HasSubstr("default no limit to publish"));
  const RunResult reload = Ibid({"quota", "--reload"});
  EXPECT_EQ(reload.exit_code, 4);
  EXPECT_THAT(reload.err, HasSubstr("start it with --tenants_file"));
}

TEST_F(CliTest, StatusAndTopShowTheTenantsWithQuotasFirstAndNoMoreThanEight) {
  PublishChain(client_.get(), ns_, TestChain(ns_.id, 4));
  const auto admin = *AdminChannel::Create(cluster_.proxy(0).address(), {});
  for (int i = 0; i < 10; ++i) {
    QuotaValues quota;
    quota.host_bytes_max = 1'000'000 + i;
    ASSERT_TRUE(admin->SetQuota("tenant-" + std::to_string(i), quota, absl::Seconds(5)).ok());
  }
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"status"}, {"top", "--count=1"}}) {
    const RunResult text = Ibid(command);
    EXPECT_EQ(text.exit_code, 0) << text.err;
    EXPECT_THAT(text.out, HasSubstr("quotas  default no limit to publish"));
    EXPECT_THAT(text.out, HasSubstr("tenant-0             host 0 B of 976.6 KiB; no limit;"));
    EXPECT_THAT(text.out, HasSubstr("tenant-7"));
    EXPECT_THAT(text.out, Not(HasSubstr("tenant-8")));
    EXPECT_THAT(text.out, HasSubstr("and 3 more tenants: ibid quota")) << "one has no name";
    std::vector<std::string> as_json = command;
    as_json.push_back("--json");
    const auto quotas = nlohmann::json::parse(Ibid(as_json).out)["servers"][0]["quotas"];
    EXPECT_EQ(quotas["tenants_count"], 11);
    ASSERT_EQ(quotas["tenants"].size(), 8u);
    EXPECT_EQ(quotas["tenants"][7]["quota"]["host_bytes_max"], 1'000'007);
  }
}

TEST_F(CliTest, AServerThatTellsOnlyAdministratorsItsQuotasCostsALine) {
  const std::string outward = OutwardAddress();
  if (outward.empty()) GTEST_SKIP() << "this machine has only loopback addresses";
  ServerOptions options;
  options.listen = "0.0.0.0:0";
  options.http_listen = "";
  options.host_bytes_max = ByteCount{uint64_t{16} << 20};
  options.extent_bytes = ByteCount{uint64_t{4} << 20};
  const auto server = CacheServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string servers = absl::StrCat("--servers=", outward, ":", (*server)->port());
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"status", servers}, {"top", "--count=2", servers}}) {
    const RunResult text = Ibid(command, false);
    EXPECT_EQ(text.exit_code, 0) << text.err;
    EXPECT_THAT(text.out,
                HasSubstr("  quotas  not shown: the server tells them to administrators only\n"));
  }
  EXPECT_THAT(SerializeMetrics((*server)->metrics()),
              HasSubstr("{code=\"PERMISSION_DENIED\",method=\"ListQuotas\"} 2\n"))
      << "each command asks once";
  const auto json = nlohmann::json::parse(Ibid({"status", servers, "--json"}, false).out);
  EXPECT_TRUE(json["servers"][0]["quotas"].contains("error"));
}

TEST_F(CliTest, MatchAnswersByTokensTextAndKeys) {
  const std::string text = "a prompt of thirty-two characters";  // 33: four blocks and a rest
  const std::vector<uint32_t> tokens(text.begin(), text.end());
  const auto chain = MakeChain(ns_.id, tokens, kTestBlockTokens, false);
  const RunResult before = Ibid({"match", "--text=" + text, worker()});
  EXPECT_EQ(before.exit_code, 1) << before.err;
  EXPECT_THAT(before.out, HasSubstr("0 of 4 blocks"));

  PublishChain(client_.get(), ns_, std::span(chain).first(3));
  const RunResult after = Ibid({"match", "--text", text, worker()});
  EXPECT_EQ(after.exit_code, 0) << after.err;
  EXPECT_THAT(after.out, HasSubstr("3 of 4 blocks"));

  const std::string ns = "--namespace=" + DigestToHex(ns_.id.digest);
  std::string ids = "--tokens=", keys = "--keys=";
  for (uint32_t token : tokens) ids += std::to_string(token) + ",";
  for (const ChainLink& link : chain) keys += DigestToHex(link.key.digest) + ",";
  const auto by_tokens =
      nlohmann::json::parse(Ibid({"match", ids, ns, "--block_tokens=8", "--json"}).out);
  EXPECT_EQ(by_tokens["matched_blocks"], 3);
  EXPECT_EQ(by_tokens["matched_tokens"], 24);
  EXPECT_EQ(nlohmann::json::parse(Ibid({"match", keys, ns, "--json"}).out)["matched_blocks"], 3);
}

TEST_F(CliTest, MatchAsksInTheNamespaceOfASaltAndAnAdapter) {
  NamespaceSpec salted = TestSpec("tenant-b");
  salted.adapter = "lora-1";
  const NamespaceHandle ns = *client_->OpenNamespace(salted);
  const std::vector<uint32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  PublishChain(client_.get(), ns, MakeChain(ns.id, tokens, kTestBlockTokens, false));
  const std::string ids = "--tokens=1,2,3,4,5,6,7,8";
  EXPECT_EQ(Ibid({"match", ids, worker()}).exit_code, 1);
  EXPECT_EQ(Ibid({"match", ids, worker(), "--salt=tenant-b"}).exit_code, 1);
  const RunResult found =
      Ibid({"match", ids, worker(), "--salt=tenant-b", "--adapter=lora-1", "--json"});
  EXPECT_EQ(found.exit_code, 0) << found.err;
  const auto json = nlohmann::json::parse(found.out);
  EXPECT_EQ(json["matched_blocks"], 1);
  EXPECT_EQ(json["namespace"], DigestToHex(ns.id.digest));

  // A worker whose namespace cannot be made from what it says of itself: no answer is better than
  // one about another namespace.
  FakeWorker other(TestSpec("hidden"), kTestBlockTokens);
  const RunResult refused = Ibid({"match", ids, "--worker=" + other.address(), "--salt=s"});
  EXPECT_EQ(refused.exit_code, 4) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("give --namespace"));
}

TEST_F(CliTest, GenerateStreamsTextAndSaysWhatItCost) {
  const RunResult text = Ibid({"generate", "--prompt=olleh", worker()});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(text.out, "hello\n");
  EXPECT_THAT(text.err, HasSubstr("TTFT 1.5 ms"));
  const auto json = nlohmann::json::parse(
      Ibid({"generate", "--tokens=104,105", "--max_tokens=1", "--json", worker()}).out);
  EXPECT_EQ(json["text"], "i");
  EXPECT_EQ(json["token_ids"], std::vector<uint32_t>{105});
  EXPECT_EQ(json["usage"]["computed_tokens"], 2);
  EXPECT_EQ(json["finish"], "length");
  TempFolder folder;
  std::ofstream(folder / "prompt") << "cba";
  EXPECT_EQ(Ibid({"generate", "--prompt_file=" + (folder / "prompt"), worker()}).out, "abc\n");
  EXPECT_EQ(Ibid({"generate", "--prompt=x", "--max_tokens=0", worker()}).exit_code, 2);
}

TEST_F(CliTest, GenerateTakesAllOfUnicodeAndNamesAFileThatIsNone) {
  const std::string text =
      "\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf";
  EXPECT_EQ(Ibid({"match", "--text=" + text, worker()}).exit_code, 1);
  TempFolder folder;
  std::ofstream(folder / "prompt") << "caf\xe9";  // Latin-1
  const RunResult result = Ibid({"generate", "--prompt_file=" + (folder / "prompt"), worker()});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("prompt: is not UTF-8 text\n"));
}

TEST_F(CliTest, GenerateSendsEachStopText) {
  Ibid({"generate", "--prompt=x", "--stop=a,b", "--stop", "\n\n", worker()});
  EXPECT_THAT(worker_.stop_texts(), testing::ElementsAre("a,b", "\n\n"));
  EXPECT_THAT(Ibid({"generate", "--help"}, false).out, HasSubstr("given several times"));
}

TEST_F(CliTest, AWorkerThatFailsIsQuoted) {
  worker_.FailAfter(0, {grpc::StatusCode::UNAVAILABLE, "the worker is shutting down"});
  const RunResult draining = Ibid({"generate", "--prompt=abc", worker()});
  EXPECT_EQ(draining.exit_code, 3);
  EXPECT_EQ(draining.out, "");
  EXPECT_EQ(draining.err, "ibid generate: generating: the worker at " + worker_.address() +
                              ": the worker is shutting down\n");
  worker_.FailAfter(2, {grpc::StatusCode::UNAVAILABLE, "Socket closed"});
  const RunResult cut = Ibid({"generate", "--prompt=abc", worker()});
  EXPECT_EQ(cut.exit_code, 3);
  EXPECT_EQ(cut.out, "cb\n");
  EXPECT_THAT(cut.err, HasSubstr("Socket closed"));
  EXPECT_THAT(cut.err, testing::Not(HasSubstr("running there")));
}

TEST_F(CliTest, GenerateCanPrefillOnAnotherWorker) {
  FakeWorker prefill(TestSpec(), kTestBlockTokens);
  const auto json = nlohmann::json::parse(
      Ibid({"generate", "--prompt=ba", "--json", worker(), "--prefill_worker=" + prefill.address()})
          .out);
  EXPECT_EQ(json["text"], "ab");
  EXPECT_EQ(json["usage"]["fetched_tokens"], 2);
  EXPECT_EQ(json["ttft_ms"], 7);
}

TEST_F(CliTest, DropRemovesBlocks) {
  const auto chain = TestChain(ns_.id, 6);
  PublishChain(client_.get(), ns_, chain);
  const std::string ns = "--namespace=" + DigestToHex(ns_.id.digest);
  EXPECT_EQ(Ibid({"drop", ns, "--keys=" + DigestToHex(chain[5].key.digest)}).out,
            "dropped 1 blocks\n");
  EXPECT_EQ(nlohmann::json::parse(Ibid({"drop", ns, "--json"}).out)["dropped_blocks"], 5);
  const RunResult all = Ibid({"drop", "--everything", "--yes"});
  EXPECT_EQ(all.exit_code, 0) << all.err;
}

TEST_F(CliTest, WhoDoesNotAnswerIsNamedWithCodeThree) {
  const std::string nobody = FaultProxy().address();  // its port is closed again
  const std::string servers = "--servers=" + nobody;
  const std::vector<std::vector<std::string>> lines = {
      {"status", servers},
      {"stats", servers},
      {"drop", "--everything", "--yes", servers},
      {"match", "--namespace=" + DigestToHex(ns_.id.digest), "--block_tokens=8",
       "--tokens=1,2,3,4,5,6,7,8", servers},
      {"match", "--text=x", "--worker=" + nobody, servers},
      {"generate", "--prompt=x", "--worker=" + nobody}};
  EXPECT_THAT(Ibid(lines.back(), false).err, HasSubstr("Is ibid-worker running there?"));
  for (const auto& line : lines) {
    const RunResult result = Ibid(line, false);
    EXPECT_EQ(result.exit_code, 3) << line[0] << result.err;
    EXPECT_THAT(result.out + result.err, HasSubstr(nobody)) << line[0];
  }
}

TEST_F(CliTest, WatchPrintsALineForWhatIsHeldAndForEachChange) {
  const auto chain = TestChain(ns_.id, 4);
  PublishChain(client_.get(), ns_, chain);
  const RunResult text = Ibid({"watch", "--count=6"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(std::count(text.out.begin(), text.out.end(), '\n'), 6) << text.out;
  EXPECT_THAT(text.out, HasSubstr("begin"));
  EXPECT_THAT(text.out, HasSubstr("exact"));
  EXPECT_THAT(text.out,
              HasSubstr("held     host " + DigestToHex(chain[3].key.digest) +
                        " position=3 tokens=8 tiers=host namespace=" + DigestToHex(ns_.id.digest)));

  std::thread later([&] {
    EXPECT_TRUE(Eventually(absl::Seconds(30), [&] {
      return SerializeMetrics(cluster_.server(0).metrics()).find("ibid_store_watchers 1") !=
             std::string::npos;
    }));
    EXPECT_TRUE(client_->Drop(&ns_.id, std::vector<BlockKey>{chain[0].key}).ok());
  });
  const RunResult json = Ibid({"watch", "--json", "--nosnapshot", "--count=2",
                               "--namespace=" + DigestToHex(ns_.id.digest)});
  later.join();
  EXPECT_EQ(json.exit_code, 0) << json.err;
  std::istringstream lines(json.out);
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(nlohmann::json::parse(line)["event"], "begin");
  ASSERT_TRUE(std::getline(lines, line));
  const auto removed = nlohmann::json::parse(line);
  EXPECT_EQ(removed["event"], "removed");
  EXPECT_EQ(removed["key"], DigestToHex(chain[0].key.digest));
  EXPECT_EQ(removed["tiers"].size(), 0u);
  EXPECT_EQ(removed["server"], cluster_.proxy(0).address());
}

TEST_F(CliTest, WatchEndsAfterItsTimeAndSaysWhenNobodyAnswers) {
  const RunResult quiet = Ibid({"watch", "--nosnapshot", "--for=500ms"});
  EXPECT_EQ(quiet.exit_code, 0) << quiet.err;
  EXPECT_EQ(std::count(quiet.out.begin(), quiet.out.end(), '\n'), 1) << quiet.out;
  const RunResult nobody =
      Ibid({"watch", "--timeout=500ms", "--servers=" + FaultProxy().address()}, false);
  EXPECT_EQ(nobody.exit_code, 3) << nobody.out;
  EXPECT_THAT(nobody.err, HasSubstr("no cache server answers"));
}

// A channel whose last reference went on gRPC's own thread made one in three of these abort.
TEST_F(CliTest, EndsCleanlyWithALiveAndADeadServer) {
  const std::string servers =
      "--servers=" + cluster_.proxy(0).address() + "," + FaultProxy().address();
  for (int round = 0; round < 15; ++round) {
    const RunResult result = Ibid({"status", servers, "--timeout=200ms"}, false);
    ASSERT_EQ(result.exit_code, 3) << result.err;
  }
}

}  // namespace
}  // namespace ibid
