// The page of the HTTP port, as text and as a real browser draws it, and the JSON behind it.
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "tests/cache_server/service/server_fixture.h"
#include "tests/harness/http.h"
#include "tests/harness/process.h"

namespace ibid {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kHostileName[] =
    "<img src=x onerror=\"document.title='taken over'\"><script>document.title='taken "
    "over'</script>";

// Empty when there is none.
std::string Browser() {
  for (const char* path : {"/usr/bin/chromium-headless-shell", "/usr/bin/chromium",
                           "/usr/bin/chromium-browser", "/usr/bin/google-chrome"}) {
    if (access(path, X_OK) == 0) return path;
  }
  return "";
}

class StatusPageTest : public ServerFixture {
 protected:
  // A server with four blocks, which were matched and fetched with one that was not there, between
  // two samples of its history.
  void StartWithTraffic() {
    StartServer();
    ASSERT_TRUE(Eventually([&] { return !Stats()["history"].empty(); }));
    client_ = Connect(spec_);
    const SampleBlocks blocks = MakeBlocks(spec_, 5);
    std::vector<PublishBlock> published = blocks.ToPublish();
    published.resize(4);
    client_->Publish(blocks.ns, published);
    client_->Match(blocks.ns, blocks.keys(), /*lease=*/true);
    client_->Fetch({client_->session_id(), blocks.ns}, blocks.keys(), SmallLayout().PayloadBytes());
    first_key_ = DigestToShortHex(blocks.links[0].key.digest);
  }

  nlohmann::json Stats() {
    const std::string reply = HttpGet(server->http_port(), "/stats.json");
    EXPECT_THAT(reply, HasSubstr("Content-Type: application/json"));
    return nlohmann::json::parse(reply.substr(reply.find("\r\n\r\n") + 4));
  }

  TempFolder folder_;
  const NamespaceSpec spec_ = SpecOf(SmallLayout());
  std::unique_ptr<TestClient> client_;
  std::string first_key_;
};

TEST_F(StatusPageTest, TheJsonSaysWhatHappened) {
  StartWithTraffic();
  const nlohmann::json stats = Stats();
  EXPECT_EQ(stats["state"], "serving");
  EXPECT_EQ(stats["version"], IBID_VERSION);
  EXPECT_EQ(stats["requested_blocks"], 5);
  EXPECT_EQ(stats["missed_blocks"], 1);
  EXPECT_EQ(stats["tiers"][0]["tier"], "host");
  EXPECT_EQ(stats["tiers"][0]["hits"], 4);
  EXPECT_EQ(stats["asked_keys"], 5);
  EXPECT_EQ(stats["matched_keys"], 4);
  EXPECT_EQ(stats["leases"], 1);
  ASSERT_EQ(stats["prefixes"].size(), 1u);
  EXPECT_EQ(stats["prefixes"][0]["first"], first_key_);
  EXPECT_EQ(stats["prefixes"][0]["longest_match"], 4);
  ASSERT_EQ(stats["sessions"].size(), 1u);
  EXPECT_EQ(stats["sessions"][0]["client_name"], "test");
  EXPECT_EQ(stats["sessions"][0]["leased_blocks"], 4);
  ASSERT_EQ(stats["tenants"].size(), 1u);
  EXPECT_EQ(stats["tenants"][0]["tenant"], "");
  EXPECT_EQ(stats["tenants"][0]["host_used_bytes"], stats["tiers"][0]["used_bytes"]);
  EXPECT_FALSE(stats["tenants"][0].contains("host_bytes_max")) << "there is no limit";
  EXPECT_TRUE(Eventually([&] { return Stats()["history"].size() >= 1; }));
  bool has_fetch = false;
  for (const auto& method : stats["methods"]) {
    has_fetch |= method["method"] == "Fetch";
    EXPECT_EQ(method["latency_counts"].size(), method["latency_bounds_seconds"].size() + 1);
  }
  EXPECT_TRUE(has_fetch);
  server->Drain(absl::Seconds(1));
  EXPECT_EQ(Stats()["state"], "draining");
}

TEST_F(StatusPageTest, ThePageLoadsNothingFromElsewhere) {
  StartServer();
  const std::string page = HttpGet(server->http_port(), "/");
  EXPECT_THAT(page, HasSubstr("200 OK"));
  EXPECT_THAT(page, HasSubstr("Content-Type: text/html; charset=utf-8"));
  EXPECT_THAT(page, HasSubstr("Content-Security-Policy"));
  EXPECT_THAT(page, Not(HasSubstr("https://")));
  EXPECT_THAT(page, Not(HasSubstr("src=")));
  EXPECT_THAT(page, Not(HasSubstr("innerHTML")));
  EXPECT_THAT(page, HasSubstr("</html>"));
}

TEST_F(StatusPageTest, ABrowserDrawsTheNumbersAndTakesNamesForText) {
  const std::string browser = Browser();
  if (browser.empty()) GTEST_SKIP() << "no chromium is installed";
  StartWithTraffic();
  ASSERT_TRUE(Eventually([&] { return Stats()["history"].back()["host_hits"] == 4; }));
  const auto hostile = client_->channel->OpenSession(kHostileName, kPatience, [](absl::Status) {});
  ASSERT_TRUE(hostile.ok()) << hostile.status();
  const auto drawn = ::ibid::Run(
      {browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
       "--no-first-run", "--disable-extensions", "--user-data-dir=" + (folder_ / "profile"),
       "--virtual-time-budget=5000", "--timeout=20000", "--dump-dom",
       absl::StrCat("http://127.0.0.1:", server->http_port(), "/")},
      absl::Seconds(90));
  ASSERT_TRUE(drawn.ok()) << drawn.status();
  const std::string& dom = drawn->out;
  EXPECT_THAT(dom, HasSubstr(">serving<"));
  EXPECT_THAT(dom, HasSubstr(">80.0%<"));  // served: 4 of 5
  EXPECT_THAT(dom, HasSubstr("4 of 5"));
  EXPECT_THAT(dom, HasSubstr("4 blocks, 4 hits"));
  EXPECT_THAT(dom, HasSubstr("<code>" + first_key_ + "</code>"));
  // The chart, 154 high: a column of 80 % and 20 %, and the keys found as one point.
  EXPECT_THAT(dom, HasSubstr("height=\"123.2\" fill=\"var(--host)\""));
  EXPECT_THAT(dom, HasSubstr("height=\"30.8\" fill=\"var(--miss)\""));
  EXPECT_THAT(dom, HasSubstr("<circle"));
  EXPECT_THAT(dom, Not(HasSubstr(">no block was asked for in this time<")));
  EXPECT_THAT(dom, HasSubstr(">Fetch<"));
  EXPECT_THAT(dom, HasSubstr("&lt;img src=x"));
  EXPECT_THAT(dom, Not(HasSubstr("<img")));
  EXPECT_THAT(dom, Not(HasSubstr("<title>taken over")));
}

}  // namespace
}  // namespace ibid
