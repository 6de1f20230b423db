"""The words by which a text speaks to a model: what it is told to leave, to be, to give away, to do. Data alone."""

from __future__ import annotations

_LEAVE = "ignore|ignoring|disregard|disregarding|forget|override|overrule|bypass|skip|discard|dismiss|neglect|abandon"
_BEFORE = (
    "previous|prior|above|earlier|preceding|foregoing|existing|original|initial|former|past|everything|all|any|current"
)
_ORDERS = "instructions?|prompts?|rules?|directives?|guidelines?|guardrails?|directions?|commands?|programming|restrictions?|constraints?|orders?|training|safeguards?|policies|context"
_MODEL = (
    "ai|ais|assistants?|llms?|chatbots?|gpt|chatgpt|claude|gemini|copilot|bots?|agents?|crawlers?|models?|bard|llama|"
    "grok|summarizers?|summarisers?"
)
_SURE_MODEL = "ai|ais|llms?|chatbots?|gpt|chatgpt|claude|gemini|copilot|bard|grok"
_SHOW = "print|reveal|show|output|repeat|display|write|tell|give|disclose|leak|expose|recite|dump|share|list|include|return|quote"
_REVEAL = "print|reveal|show|output|repeat|display|disclose|leak|expose|recite|dump|quote"
_SECRETS = (
    "secrets?|passwords?|credentials?|token|tokens|key|keys|cookies?|inbox|contacts?|history|emails|logs?|database|"
    "transcript|variables|data|files|memory|messages|book"
)
_SEND = "send|forward|post|email|mail|upload|transmit|exfiltrate|submit|leak|copy|deliver|paste"
_UNBOUND = "restrictions?|limits|limitations?|filters?|rules|guidelines|policy|policies|censorship|boundaries|guardrails|ethics|morals"
_JUDGE = "recommend|rate|rank|approve|praise|endorse|score|accept|grade|prefer|promote|hire|favour|favor"

INJECTION_RULES: tuple[tuple[str, float, str], ...] = (
    # leave what you were told
    ("override", 0.8, f"{_LEAVE} ..4 {_BEFORE} ..1 {_ORDERS}"),
    ("override", 0.75, f"{_LEAVE} ..1 your ..2 {_ORDERS}"),
    ("override", 0.65, f"{_LEAVE} ..2 everything|all|anything ..2 above|before|earlier|previously|prior|told|said"),
    ("override", 0.65, "forget|disregard|ignore ..1 what|whatever|everything|all ..1 you ..1 were|have|are ..1 told|given|instructed|taught"),
    ("override", 0.6, f"stop ..1 following|obeying ..3 {_ORDERS}"),
    ("override", 0.6, f"do|must|should not ..1 follow|obey ..2 {_BEFORE} ..2 {_ORDERS}"),
    ("override", 0.6, f"your ..2 {_ORDERS}|goal|task|objective|mission ..1 have|has|is|are ..1 changed|complete|completed|now|void|cancelled|over|replaced|updated|suspended"),
    ("override", 0.5, "your|the new|next|real|actual|true|only goal|task|objective|mission|job|instruction is|begins"),
    ("override", 0.5, f"new|updated|real|actual {_ORDERS} ..1 for ..2 {_MODEL}"),
    ("override", 0.55, f"earlier|previous|prior|original|old|above {_ORDERS} ..3 never|longer|not ..2 existed|apply|applies|count|valid|exist|matter"),
    ("override", 0.55, f"{_ORDERS}|filters?|protocols? ..3 suspended|disabled|lifted|revoked|deactivated|superseded"),
    ("override", 0.5, "they|it|these|those no longer apply ..2 to ..1 this|the conversation|chat|session"),
    ("override", 0.6, "system override|reset|alert"),
    ("override", 0.35, "end|begin|start of ..1 document|prompt|input|context|instructions|data|content|text|message"),
    ("override", 0.4, "above|previous|preceding|foregoing content|text|document|page ..2 is|was ..2 only|just|merely ..2 test|dummy|example|sample|padding"),
    # be another
    ("role", 0.55, "from ..1 now|this|here on|onward|onwards|point|moment ..2 you"),
    ("role", 0.45, "from this point|moment on ..1 respond|answer|act|behave|speak|reply"),
    ("role", 0.55, f"you are|'re|become now ..3 dan|{_MODEL}|root|admin|administrator|unrestricted|unfiltered|uncensored|jailbroken|maintenance|evil|pirate|god|hacker|in"),
    ("role", 0.6, "do anything now"),
    ("role", 0.55, "developer|god|admin|debug|maintenance|sudo|jailbreak|unrestricted|dan|root mode ..6 you|answer|enabled|active|activated|all|any|comply|rules"),
    ("role", 0.4, "you ..3 developer|god|admin|debug|maintenance|sudo|jailbreak|unrestricted|dan mode"),
    ("role", 0.6, f"{_SURE_MODEL}|model|assistant|you|answer|respond|act ..3 without|no|has|zero ..2 any|no|content|safety|{_UNBOUND} ..1 {_UNBOUND}"),
    ("role", 0.55, f"{_SURE_MODEL}|model|assistant|answer|respond ..2 without|no ..1 {_UNBOUND}"),
    ("role", 0.55, f"as ..1 if ..1 you ..2 had|have|were|are ..1 no|not|free ..2 {_UNBOUND}|restricted|bound"),
    ("role", 0.5, "unfiltered|uncensored|unrestricted|amoral|jailbroken model|ai|assistant|chatbot|version|mode|answers?"),
    ("role", 0.45, "stay|remain in character ..8 never|not|no"),
    ("role", 0.45, "never ..1 refuses?|decline|declines ..3 anything|requests?|questions?|user|to|request"),
    ("role", 0.3, "pretend|imagine|suppose|roleplay|simulate ..3 you ..2 are|have|can"),
    ("role", 0.35, f"pretend|imagine ..4 {_ORDERS} ..2 never|not|don't"),
    ("role", 0.45, "behave|act|respond|answer as root|admin|administrator|superuser|dan"),
    ("role", 0.45, "comply with ..1 every|all|any ..2 requests?|instructions?|commands?|orders?"),
    ("role", 0.45, "obey ..2 every|all|any|only|the|this|me ..2 instructions?|sender|commands?|orders?|user|message|mail"),
    ("role", 0.5, "content|safety policy|policies|filters?|rules|checks ..3 disabled|off|suspended|refuses|ignored|lifted"),
    # give your instructions away
    ("reveal", 0.6, f"{_REVEAL} ..5 system|hidden|initial|original|developer|secret|internal|base|full ..1 prompt|prompts|instructions|message|configuration|directives"),
    ("reveal", 0.65, f"{_SHOW} ..4 your ..2 prompt|instructions?|rules|guidelines|configuration|directives|programming"),
    ("reveal", 0.6, "what ..1 were|are|is your ..1 initial|original|system|hidden|secret|exact|first|full ..1 instructions?|prompt|message|rules"),
    ("reveal", 0.6, "repeat|print|output|write|copy|echo ..3 words|text|everything|all|lines?|sentences? above|before|preceding|verbatim"),
    ("reveal", 0.55, "output|write|print|reveal|repeat ..2 all|every ..3 confidential|hidden|secret|private|internal ..2 text|information|data|instructions?"),
    ("reveal", 0.5, "show|reveal|print|output|give|tell ..2 secret|api|admin|root|private|hidden key|keys|password|token"),
    # you there
    ("address", 0.5, f"if you ..1 are|'re ..3 {_SURE_MODEL}|language"),
    ("address", 0.5, f"{_MODEL} ..1 reading|processing|analyzing|analysing|parsing|summarizing|summarising|reviewing|scanning|indexing|screening|handling|evaluating ..1 this|the|these|it"),
    ("address", 0.35, f"{_MODEL} ..1 reading|processing|analyzing|analysing|parsing|summarizing|summarising|reviewing"),
    ("address", 0.5, f"note|notice|message|instructions?|attention|memo|hint|reminder|request|p.s|s ..1 to|for ..2 {_MODEL}|screening|language"),
    ("address", 0.45, f"dear|attention|hey|hello|hi|attn ..1 {_SURE_MODEL}|assistant|agent|bot|model|language"),
    ("address", 0.45, f"todo|note|fixme for|to {_SURE_MODEL}|assistant"),
    ("address", 0.45, f"any|every|all ..1 {_SURE_MODEL}|agents?|models? ..4 must|should|shall|needs?|are|is ..1 to|required|instructed|include|escalate|recommend|ignore|follow|not"),
    ("address", 0.5, f"{_SURE_MODEL} ..2 assistants?|models?|agents?|systems?|crawlers?|bots?|tools? ..4 must|should|shall"),
    ("address", 0.4, f"the|all|this {_MODEL} must|should|shall ..2 now|first|always|never|not|only|include|mention|output|write|say|respond|reply|answer|recommend"),
    ("address", 0.45, "as an ai language|model|assistant ..3 you must|should|will|are"),
    ("address", 0.3, f"{_SURE_MODEL}|agents|agent|assistant tell|click|open|include|say|reply|respond|add|read|run|send|buy|recommend|call|write|forward"),
    # and say nothing
    ("secrecy", 0.5, "do|don't|never|not ..2 tell|inform|alert|notify|warn|ask|show|let ..2 user|users|human|operator|customer|visitor|reader"),
    ("secrecy", 0.5, "without ..1 telling|informing|notifying|asking|alerting|mentioning ..2 user|users|human|them|him|her|confirmation|approval"),
    ("secrecy", 0.45, "do|don't|never not|ever|mention|reveal|log|disclose|acknowledge ..1 mention|reveal|log|disclose|this|the|acknowledge ..2 request|instructions?|comment|message|change|prompt|note|email|text"),
    ("secrecy", 0.4, "never mention ..2 request|instructions?|comment|message|change|note"),
    ("secrecy", 0.35, "quietly|silently|secretly|covertly ..2 run|send|forward|add|call|open|execute|delete|post|upload|copy|read|insert|change"),
    # do
    ("command", 0.35, "call|use|invoke|execute|trigger|run ..2 tool|function|send_email|command|plugin|terminal|file|shell|browser|send ..6 to|and|with|email"),
    ("command", 0.45, "click|press|confirm|place|submit|complete ..4 button|order|purchase|payment|transfer|form ..3 without ..1 asking|confirmation|approval"),
    ("command", 0.45, "delete|remove|wipe|erase|drop ..2 everything|all ..4 home|files|database|records|tables|emails|repository|branch|folder"),
    ("command", 0.5, "you|i|can|will|may|should skip|bypass ..1 the approval|confirmation|verification|review|checks?"),
    ("command", 0.4, "no longer|never|not need|have ..1 to verify|check|confirm|ask ..3 identit|identities|identity|user|users|permission|anyone"),
    ("command", 0.4, "granted|give|given|has|have ..2 full|complete|unlimited|admin permission|permissions|access|rights|authority ..2 to"),
    ("command", 0.5, "decode ..3 and ..1 do|follow|execute|obey|run|act"),
    ("command", 0.3, "before|when|after you answer|respond|reply|summarize|summarise|finish|read"),
    ("command", 0.3, "call|run|execute|escalate|close|transfer|delete|refund|approve ..6 report|say|reply|confirm ..2 that|done|success|passed|all"),
    ("command", 0.4, "confirm by printing|writing|saying|replying|outputting|answering"),
    # say
    ("steering", 0.35, f"must|should|always|shall ..2 {_JUDGE} ..6 best|first|highest|top|five|stars|five|positively|genuine|our|this|10|5|only"),
    ("steering", 0.35, f"{_JUDGE} ..5 first|highest|top|10|5|five|100 ..5 stars?|of|whatever|regardless|10|100|criteria|else|ignoring"),
    ("steering", 0.45, "include|insert|add|put|mention|place ..3 phrase|link|following|sentence|words?|text|line ..8 summary|answer|answers|response|responses|reply|output|every"),
    ("steering", 0.4, "reply|respond|answer|say|output|print ..1 only|just|nothing ..1 with|but|the|that ..4 word|phrase|text|yes|ok|pwned|hacked|approved|sentence"),
    ("steering", 0.4, "when|if ..1 you ..1 summarize|summarise|asked|review|answer|translate|describe ..4 do|say|not|always|never|must|mention ..3 mention|not|say|state|include|that"),
    ("steering", 0.35, "summary|answer|response|reply|output must|should|has|shall ..1 to|say|include|contain|state|end|begin|start"),
    ("steering", 0.35, "in every|each|all|your|any answers?|responses?|reply|replies|output|summary|summaries"),
    ("steering", 0.45, "say|state|tell|report|claim|write ..2 that ..4 is|are|was|were|tests|company ..4 bankrupt|excellent|best|passed|safe|approved|guilty|dead|closed|perfect"),
    ("steering", 0.4, "mark|label|classify|flag|treat ..2 this|it|the|as ..2 as ..1 genuine|safe|approved|spam|resolved|priority|trusted|verified|benign|harmless|urgent"),
    ("steering", 0.35, "escalate|set ..2 to priority"),
    ("steering", 0.45, "instead|only ..3 output|print|say|write|reply ..3 password|word|hacked|pwned"),
    ("steering", 0.4, "translate|summarize|summarise|answer nothing|instead ..2 and|output|write|print|say"),
    # lead data out
    ("exfiltration", 0.5, f"{_SEND} ..6 conversation|chat|api|system|private|ssh|environment|customer|address|user's|users|client|session|bank|last|all ..2 {_SECRETS}|lists?|prompt"),
    ("exfiltration", 0.4, f"{_SEND} ..3 {_SECRETS} ..3 to|below|at"),
    ("exfiltration", 0.5, f"append|add|include|attach|put|encode|embed|insert ..6 {_SECRETS} ..8 url|link|request|message|reply|answer|query|image|parameter|https|http|commit"),
    ("exfiltration", 0.4, "append|add|replace|put|encode ..4 placeholder|parameter|url|query ..4 what|with|by|user|message|conversation"),
    ("exfiltration", 0.45, f"read|open|cat|load|fetch ..3 env|ssh|passwd|id|shadow|credentials|secrets|keychain|wallet ..4 and|into|add|post|include|send ..4 {_SEND}|contents?|secrets?|include|it|them"),
    ("exfiltration", 0.4, f"list|read|print|collect|gather|dump ..2 environment|env|secret|secrets|passwords variables?|and|files ..3 {_SEND}|and ..3 {_SEND}|them|it|to"),
    ("exfiltration", 0.45, "give|hand|tell|show ..2 account|bank|card|customer ..1 balance|number|details|data ..3 anyone|everyone|whoever|any|all"),
    ("exfiltration", 0.4, "ask|tell|urge|get|make|have ..2 user|customer|reader|visitor ..3 enter|type|give|provide|send|share|disclose ..3 password|credentials|card|pin|code|details"),
    # German
    ("override", 0.75, "ignoriere|ignorier|ignorieren|vergiss|vergessen|missachte|missachten|übergehe|verwirf|überschreibe ..4 vorherigen|bisherigen|vorigen|früheren|obigen|vorangegangenen|deine|deinen|ihre|alle ..2 anweisungen|regeln|instruktionen|vorgaben|befehle|anweisung|richtlinien|aufträge|prompts"),
    ("role", 0.45, "du bist|handelst jetzt|nun|ab"),
    ("role", 0.45, "ab jetzt|sofort ..1 bist|antwortest|handelst|gehorchst"),
    ("reveal", 0.55, "zeige|zeig|verrate|verrätst|gib|nenne|drucke|wiederhole ..3 deinen|deine|den|die|das ..1 systemprompt|systemanweisungen|anweisungen|prompt|systemnachricht|geheimnis|schlüssel"),
    ("steering", 0.4, "gib|antworte|schreibe|sage|antworten ..1 nur|ausschließlich|lediglich ..4 wort|aus|mit|ja|erfolg|ok"),
    ("steering", 0.4, "antworte ..4 nicht ..6 sondern"),
    ("secrecy", 0.5, "sage|sag|verrate|teile|informiere ..1 dem|den ..1 nutzer|benutzer|anwender ..3 nichts|nicht"),
    ("exfiltration", 0.4, "sende|schicke|leite ..6 passwort|passwörter|kennwörter|gespräch|verlauf|kundendaten|schlüssel|adressbuch|daten ..3 an"),
    ("exfiltration", 0.4, "fordere|bitte ihn|sie|den ..4 passwort|kennwort|pin ..6 einzugeben|anzugeben|mitzuteilen"),
    ("address", 0.45, "hinweis|nachricht|anweisung|achtung ..1 an|für ..1 die|den|alle|das|jede ki|ki's|sprachmodell|assistenten|sprachmodelle|chatbot|agenten|modell"),
    ("address", 0.5, "wenn|falls ..1 du ..3 ki|sprachmodell|assistent|chatbot"),
    # French
    ("override", 0.75, "ignore|ignorez|ignorer|oublie|oubliez|néglige|négligez ..3 instructions|consignes|règles|directives|ordres ..1 précédentes|précédents|antérieures|ci|préalables|initiales"),
    ("override", 0.65, "ignore|ignorez|oublie|oubliez ..1 tes|vos|toutes ..1 instructions|consignes|règles|directives"),
    ("role", 0.5, "tu|vous es|êtes désormais|maintenant"),
    ("reveal", 0.55, "affiche|affichez|révèle|révélez|montre|montrez|donne|répète|imprime ..2 ton|votre|le|tes|vos ..1 prompt|instructions|consignes|système"),
    ("role", 0.4, "assistant|modèle|ia sans ..1 aucune|limite|limites|restriction|restrictions|filtre"),
    ("secrecy", 0.5, "ne|n dis|dites|informe|informez|préviens|parle ..1 pas|rien ..2 utilisateur|l'utilisateur"),
    ("exfiltration", 0.4, "envoie|envoyez|transmets|transmettez|transfère ..5 conversation|mots|clé|clés|historique|contacts|données|courriels ..4 à"),
    ("address", 0.45, "note|message|avis|instruction à|pour|aux ..2 ia|l'ia|assistant|l'assistant|modèle|modèles|assistants"),
    ("steering", 0.4, "réponds|répondez|écris|dis|écrivez ..1 seulement|uniquement|simplement"),
    # Spanish
    ("override", 0.75, "ignora|ignore|ignorar|olvida|olvide|descarta|desobedece|omite ..3 instrucciones|reglas|órdenes|indicaciones|directrices ..1 anteriores|previas|precedentes|dadas|iniciales"),
    ("override", 0.55, "olvida|ignora|olvide ..1 tus|las|todas|sus ..1 reglas|instrucciones|órdenes|directrices"),
    ("role", 0.5, "eres|serás|actúa|actúas ..1 ahora|como|un|desde ..2 modelo|asistente|pirata|ia|administrador|dan"),
    ("role", 0.45, "a partir de ahora"),
    ("role", 0.4, "modelo|asistente|ia sin ..1 restricciones|límites|filtros|reglas"),
    ("reveal", 0.5, "muestra|revela|imprime|enseña|repite|escribe|dime ..2 prompt|clave|instrucciones|contraseña|secreto ..3 sistema|api|iniciales|ocultas|secreta"),
    ("secrecy", 0.5, "no ..1 digas|informes|avises|menciones|cuentes ..3 usuario"),
    ("exfiltration", 0.4, "envía|envíe|manda|reenvía|sube ..5 conversación|contraseñas|claves|historial|contactos|correos|datos|clientes ..5 a"),
    ("address", 0.45, "nota|mensaje|aviso|instrucción para|a ..2 ia|asistente|modelo|asistentes|modelos"),
    ("steering", 0.4, "responde|escribe|di|contesta ..1 solo|sólo|únicamente|solamente"),
    # Italian, Portuguese
    ("override", 0.75, "ignora|ignorare|ignorate|dimentica|dimenticate|tralascia ..3 istruzioni|regole|indicazioni|ordini ..1 precedenti|iniziali|sopra|date"),
    ("role", 0.45, "da|d'ora ..1 ora in poi|avanti ..1 sei|rispondi|agisci"),
    ("role", 0.45, "sei ora|adesso un|una|il"),
    ("reveal", 0.5, "mostra|rivela|stampa|scrivi ..2 prompt|istruzioni|chiave|password ..2 sistema|iniziali|segreta|nascoste"),
    ("steering", 0.35, "scrivi|rispondi|di solo|soltanto|unicamente"),
    ("override", 0.75, "ignore|ignora|ignorar|esqueça|esquece|desconsidere ..3 instruções|regras|ordens|orientações ..1 anteriores|prévias|acima|iniciais"),
    ("role", 0.45, "a partir de agora|já ..1 você|és|responda"),
    ("reveal", 0.5, "mostre|revele|imprima|exiba ..3 prompt|instruções|senha|chave ..2 sistema|iniciais|secreta|api"),
    ("exfiltration", 0.4, "envie|mande|encaminhe ..4 clientes|conversa|senhas|contatos|dados|histórico ..3 para"),
    # Russian
    ("override", 0.75, "игнорируй|игнорируйте|забудь|забудьте|отбрось|проигнорируй ..3 предыдущие|прежние|прошлые|все|свои|предыдущих ..2 инструкции|указания|правила|команды|инструкций"),
    ("role", 0.45, "теперь|отныне ты|вы"),
    ("reveal", 0.55, "выведи|покажи|раскрой|напечатай|повтори ..3 системный|системные|секретный|свои|скрытые ..1 промпт|инструкции|ключ|подсказку|запрос"),
    ("secrecy", 0.5, "не говори|сообщай|рассказывай ..1 пользователю"),
    ("exfiltration", 0.4, "отправь|перешли|пошли ..4 пароли|пароль|переписку|контакты|данные|ключи|историю"),
    ("steering", 0.4, "ответь|отвечай|напиши ..1 только|лишь"),
)  # fmt: skip

UNSPACED_RULES: tuple[tuple[str, float, str], ...] = (
    (
        "override",
        0.75,
        r"(?:忽略|无视|無視|忘记|忘掉|忽視)[^。.!！\n]{0,12}(?:指令|指示|提示词|规则|命令|設定|设定|規則|要求)",
    ),
    ("override", 0.75, r"(?:指示|命令|プロンプト|ルール|指令|設定)[^。.!！\n]{0,10}(?:無視|忘れ|従わな)"),
    ("override", 0.75, r"(?:지시|명령|규칙|프롬프트)[^。.!！\n]{0,10}(?:무시|잊)"),
    ("override", 0.7, r"(?:تجاهل|انس)[^.!\n]{0,20}(?:التعليمات|الأوامر|القواعد)"),
    ("override", 0.7, r"(?:अनदेखा|भूल)[^।.!\n]{0,20}|(?:निर्देशों|नियमों)[^।.!\n]{0,20}(?:अनदेखा|भूल|नज़रअंदाज़)"),
    (
        "reveal",
        0.55,
        r"(?:显示|输出|泄露|打印|告诉|告訴|顯示)[^。.!！\n]{0,8}(?:系统提示|系統提示|提示词|密码|密钥|初始指令)",
    ),
    ("reveal", 0.55, r"(?:システムプロンプト|パスワード|秘密の?鍵|初期指示)[^。.!！\n]{0,6}(?:表示|出力|教え|公開)"),
    ("reveal", 0.55, r"(?:시스템 ?프롬프트|비밀번호)[^。.!！\n]{0,8}(?:출력|보여|알려)"),
    ("role", 0.5, r"(?:你现在是|从现在起你|從現在起你|你現在是)|あなたは(?:今から|これから)|이제부터 너는"),
    ("steering", 0.4, r"(?:只|仅|僅)(?:回答|输出|回复|輸出|回覆)|(?:とだけ|のみを?)(?:答え|回答|返信|出力)|라고만"),
    (
        "secrecy",
        0.5,
        r"(?:不要|别|勿)(?:告诉|告訴|通知)[^。\n]{0,4}(?:用户|使用者|用戶)|ユーザーに(?:は)?(?:言わ|知らせ|伝え)な",
    ),
    ("exfiltration", 0.45, r"(?:发送|發送|转发|上传)[^。\n]{0,12}(?:密码|对话|密钥|聊天记录|通讯录|数据)"),
)
"""Expressions for languages that are written without spaces, or bend words at both ends; each is bounded."""
