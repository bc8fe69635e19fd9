"""The words of the built-in corpus, as tables."""

# Chinese, measure word, English. "/" gives an irregular plural; in "cup of tea", cup is the unit of a mass noun.
NOUNS = {
    "person": "学生 个 student, 老师 位 teacher, 医生 位 doctor, 司机 位 driver, 工程师 位 engineer, 演员 位 actor, "
    "护士 位 nurse, 警察 位 police officer, 厨师 位 chef, 作家 位 writer, 艺术家 位 artist, 农民 位 farmer",
    "human": "孩子 个 child/children, 男人 个 man/men, 女人 个 woman/women",
    "friend": "朋友 个 friend, 同学 个 classmate, 邻居 个 neighbor, 同事 个 colleague",
    "kin": "妈妈 个 mother, 爸爸 个 father, 哥哥 个 older brother, 姐姐 个 older sister, 弟弟 个 younger brother, "
    "妹妹 个 younger sister, 爷爷 个 grandfather, 奶奶 个 grandmother",
    "pet": "猫 只 cat, 狗 只 dog, 鸟 只 bird, 兔子 只 rabbit",
    "farm": "马 匹 horse, 羊 只 sheep/sheep, 鹅 只 goose/geese",
    "wild": "老鼠 只 mouse/mice, 鱼 条 fish/fish, 大象 头 elephant, 猴子 只 monkey",
    "fruit": "苹果 个 apple, 香蕉 根 banana, 橙子 个 orange, 草莓 颗 strawberry, 土豆 个 potato/potatoes, "
    "西红柿 个 tomato/tomatoes, 鸡蛋 个 egg",
    "dish": "饺子 个 dumpling, 包子 个 steamed bun, 三明治 个 sandwich, 饼干 块 cookie, "
    "面包 块 piece of bread, 蛋糕 块 piece of cake, 巧克力 块 piece of chocolate, 面条 碗 bowl of noodles, "
    "米饭 碗 bowl of rice",
    "drink": "茶 杯 cup of tea, 咖啡 杯 cup of coffee, 牛奶 杯 glass of milk, 水 杯 glass of water",
    "juice": "果汁 杯 glass of juice, 啤酒 瓶 bottle of beer, 可乐 瓶 bottle of cola",
    "text": "书 本 book, 小说 本 novel, 杂志 本 magazine, 报纸 份 newspaper, 词典 本 dictionary",
    "letter": "信 封 letter, 故事 个 story, 诗 首 poem",
    "show": "电影 部 movie, 比赛 场 game",
    "clothes": "衬衫 件 shirt, 裙子 条 skirt, 毛衣 件 sweater, 大衣 件 coat, 帽子 顶 hat, 鞋 双 pair of shoes, "
    "裤子 条 pair of trousers",
    "device": "手机 部 phone, 电脑 台 computer, 手表 块 watch, 照相机 台 camera",
    "thing": "伞 把 umbrella, 钥匙 把 key, 杯子 个 cup, 刀 把 knife/knives, 照片 张 photo, 礼物 件 gift",
    "case": "盒子 个 box, 书包 个 schoolbag, 箱子 个 suitcase",
    "furniture": "桌子 张 table, 椅子 把 chair, 床 张 bed, 沙发 张 sofa, 灯 盏 lamp",
    "vehicle": "汽车 辆 car, 自行车 辆 bicycle, 卡车 辆 truck",
    "flower": "花 朵 flower",
    "tree": "树 棵 tree",
    "opening": "门 扇 door, 窗户 扇 window",
    "house": "房子 座 house",
}
PEOPLE, ANIMALS, FOOD = "person human friend kin", "pet farm wild", "fruit dish drink juice"
GOODS = "text clothes device thing case furniture vehicle"
INDEFINITE = f"{FOOD} {ANIMALS} text letter show clothes flower tree"  # a bare noun may mean "some"
OWNABLE = f"{GOODS} pet farm letter opening house"

# Chinese | English | categories of the object | modes | tags of the places
# Modes: h habit, p past, e experience (过), f future, n now (正在), m modal verbs, s skill (会).
TRANSITIVE = f"""
吃   | eat          | fruit dish                    | hpefnm | food
喝   | drink        | drink drink juice             | hpefnm | food
读   | read         | text letter                   | hpefnm | quiet
写   | write        | letter                        | hpefnm | quiet
看   | watch        | show                          | hpefnm | home
买   | buy          | {FOOD} flower                 | hpfm   | shop
买   | buy          | {GOODS} house                 | pfm    | shop
卖   | sell         | {GOODS}                       | pfm    | shop
洗   | wash         | clothes fruit                 | hpfnm  | home
做   | make         | dish                          | hpefnm | kitchen
画   | draw         | {ANIMALS}                     | hpefnm | sport
画   | draw         | flower tree house             | hpefnm | sport
找   | look for     | device thing pet text         | pfnm   |
看见 | see          | {ANIMALS} flower tree vehicle | pf     | sport
修   | repair       | device furniture vehicle      | pfnm   |
喂   | feed         | {ANIMALS}                     | hpefnm | farm
借   | borrow       | text device vehicle thing     | pfm    |
打开 | open         | opening opening case          | hpfnm  |
擦   | clean        | opening furniture             | hpfnm  |
帮助 | help         | {PEOPLE}                      | hpefm  |
等   | wait for     | {PEOPLE}                      | hpfnm  | meet
看望 | visit        | {PEOPLE}                      | hpfm   |
照顾 | take care of | {PEOPLE} pet farm             | hpefnm | home
"""
GIVING = f"""
给   | give | text thing clothes device {FOOD} | pfm
借给 | lend | text thing device vehicle        | pfm
卖给 | sell | device vehicle furniture text    | pfm
寄给 | send | letter text clothes thing        | pfm
"""
STATIVE = f"""
喜欢 | like | {FOOD} {GOODS} {ANIMALS} letter show flower tree
想要 | want | {FOOD} {GOODS}
需要 | need | {GOODS}
认识 | know | person human friend
有   | have | {FOOD} {GOODS} pet house
"""
# Verbs that need no object. A slash splits a verb from its built-in object: 过 goes between them.
ACTIVITY = """
跑步    | run             | hpfnm   | sport
游泳    | swim            | hpfnms  | water
睡觉    | sleep           | pfnm    | bed
唱歌    | sing            | hpfnms  | home sport
跳舞    | dance           | hpfnms  | home sport
工作    | work            | hpfnm   | work
做饭    | cook            | hpfnms  | kitchen
散步    | take a walk     | hpfnm   | sport
拍照    | take photos     | hpfnm   | sport city
看/电视 | watch TV        | hpfnm   | home
听/音乐 | listen to music | hpfnm   | home quiet
打/篮球 | play basketball | hpefnms | sport
踢/足球 | play soccer     | hpefnms | sport
下/棋   | play chess      | hpefnms | quiet
弹/钢琴 | play the piano  | hpefnms | home
学/中文 | learn Chinese   | hpefnm  | quiet city
学/英文 | learn English   | hpefnm  | quiet city
回/家   | go home         | hpfm    |
"""
# Chinese after 在 | English | tags
PLACES = """
家       | at home              | food quiet home kitchen bed
学校     | at school            | food quiet sport work kitchen
公园     | in the park          | food quiet sport
图书馆   | at the library       | quiet work meet
饭馆     | at the restaurant    | food work kitchen meet
咖啡馆   | at the cafe          | food quiet work meet
厨房里   | in the kitchen       | food home kitchen
教室里   | in the classroom     | food quiet meet
花园里   | in the garden        | food quiet sport
房间里   | in the room          | home quiet bed
客厅里   | in the living room   | home quiet food bed
办公室里 | in the office        | food quiet work
超市     | at the supermarket   | shop work
商店     | at the store         | shop work
市场     | at the market        | shop work
商场     | at the mall          | shop work meet
海边     | at the beach         | sport water
河边     | by the river         | sport water farm
湖边     | by the lake          | sport water
操场上   | on the playground    | sport
农场     | on the farm          | farm work kitchen
医院     | at the hospital      | work meet
工厂     | at the factory       | work
博物馆   | at the museum        | work meet
动物园   | at the zoo           | work meet
电影院   | at the cinema        | work meet
机场     | at the airport       | work meet
火车站   | at the train station | work meet
北京     | in Beijing           | city work shop
上海     | in Shanghai          | city work shop
伦敦     | in London            | city work shop
巴黎     | in Paris             | city work shop
"""
# Chinese | English | comparative | what it is said of | its form before a noun. "-" where there is none.
ADJECTIVES = f"""
大     | big         | bigger           | {ANIMALS} fruit furniture house flower tree | 大
小     | small       | smaller          | {ANIMALS} fruit furniture house flower tree | 小
新     | new         | newer            | {GOODS} house                               | 新
旧     | old         | older            | {GOODS} house                               | 旧
贵     | expensive   | more expensive   | {GOODS} {FOOD} house                        | -
便宜   | cheap       | cheaper          | {GOODS} {FOOD}                              | 便宜的
重     | heavy       | heavier          | furniture device text farm case             | -
漂亮   | beautiful   | more beautiful   | clothes flower tree house device furniture  | 漂亮的
有用   | useful      | more useful      | text device                                 | 有用的
有意思 | interesting | more interesting | text letter show                            | 有意思的
无聊   | boring      | more boring      | text letter show                            | 无聊的
好吃   | delicious   | more delicious   | fruit dish                                  | 好吃的
热     | hot         | hotter           | drink                                       | 热
可爱   | cute        | cuter            | pet wild                                    | 可爱的
聪明   | smart       | smarter          | pet person friend                           | 聪明的
友好   | friendly    | friendlier       | person friend human                         | 友好的
年轻   | young       | younger          | person friend                               | 年轻的
出名   | famous      | more famous      | person                                      | 出名的
高     | tall        | taller           | person friend human tree                    | -
红色   | red         | -                | clothes vehicle furniture flower            | 红色的
黑色   | black       | -                | clothes vehicle furniture device pet        | 黑色的
白色   | white       | -                | clothes vehicle furniture pet flower        | 白色的
"""
MERITS, FAULTS = "新 便宜 漂亮 有用 有意思 好吃 可爱", "贵 旧 重 无聊 大 小"  # fine, but too ...
FEELINGS = "累 tired, 忙 busy, 饿 hungry, 渴 thirsty, 高兴 happy, 生气 angry, 难过 sad, 紧张 nervous"
SPOTS = (
    "桌子 table 上 下面 旁边, 床 bed 上 下面 旁边, 椅子 chair 上 下面 旁边, 沙发 sofa 上 下面 旁边, 盒子 box 里 旁边, "
    "书包 schoolbag 里 旁边, 冰箱 fridge 里 旁边, 门 door 后面 旁边, 树 tree 下面 旁边, 房子 house 前面 后面"
)
SIDES = {"上": "on", "下面": "under", "旁边": "next to", "里": "in", "后面": "behind", "前面": "in front of"}
# Chinese, English, object form, possessive, agreement (1: I, s: third singular, p: plural and you)
PRONOUNS = (
    "我 I me my 1, 你 you you your p, 他 he him his s, 她 she her her s, 我们 we us our p, 你们 you you your p, "
    "他们 they them their p, 她们 they them their p"
)
NAMES = "汤姆 Tom, 安娜 Anna, 玛丽 Mary, 彼得 Peter, 大卫 David, 露西 Lucy, 李明 Li Ming, 王芳 Wang Fang"
CARDINALS = "两 two, 三 three, 四 four, 五 five, 六 six, 七 seven, 八 eight, 九 nine, 十 ten"
WEEKDAYS = "一 Monday, 二 Tuesday, 三 Wednesday, 四 Thursday, 五 Friday, 六 Saturday, 天 Sunday"
TIMES = {
    "habit": "每天 every day, 每天早上 every morning, 每天下午 every afternoon, 每天晚上 every evening, "
    "每个周末 every weekend",
    "past": "昨天 yesterday, 昨天早上 yesterday morning, 昨天下午 yesterday afternoon, 昨天晚上 last night, "
    "今天早上 this morning, 前天 the day before yesterday, 上个周末 last weekend",
    "future": "明天 tomorrow, 明天早上 tomorrow morning, 明天下午 tomorrow afternoon, 明天晚上 tomorrow evening, "
    "今天晚上 tonight, 后天 the day after tomorrow, 下个周末 next weekend",
}
WEEKLY = {"habit": ("每个", "every"), "past": ("上个", "last"), "future": ("下个", "next")}
COUNTED = {"past": ("前", "{} ago"), "future": ("后", "in {}")}
ADVERBS = "常常 often, 有时候 sometimes, 很少 rarely"
TRANSPORT = "坐公共汽车 by bus, 坐地铁 by subway, 坐出租车 by taxi, 骑自行车 by bike, 走路 on foot"
FAR_TRANSPORT = "坐火车 by train, 坐飞机 by plane"
# Past tense and participle where they are not regular.
IRREGULAR = {
    "eat": "ate eaten", "drink": "drank drunk", "read": "read read", "write": "wrote written", "buy": "bought bought",
    "sell": "sold sold", "make": "made made", "draw": "drew drawn", "see": "saw seen",
    "take": "took taken", "run": "ran run", "swim": "swam swum", "sleep": "slept slept",
    "sing": "sang sung", "go": "went been", "come": "came come", "give": "gave given",
    "lend": "lent lent", "send": "sent sent", "put": "put put", "think": "thought thought", "know": "knew known",
    "have": "had had", "feed": "fed fed",
}  # fmt: skip
DOUBLED = ("run", "swim", "chat", "put", "plan")


def rows(table: str) -> list[list[str]]:
    """Read a table of lines and bars into rows of cells."""
    return [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines()]


def entries(text: str, fields: int = 2) -> list[list[str]]:
    """Read "a b, c d" into [[a, b], [c, d]]; the last field of an entry may hold spaces."""
    return [entry.split(maxsplit=fields - 1) for entry in text.split(", ")]
