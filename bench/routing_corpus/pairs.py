"""Near misses, written for Octet: the same tasks in C++ or C, which belong to a specialist, and in other languages and
tools, which are refused; and questions about C++ in Russian, Chinese, German and Spanish.

python -m bench.routing_corpus.pairs router/data/corpus
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

from octet.config.ensemble import REJECT
from router.routing.training.records import LabelledPrompt, write_records

_LICENCE = "Apache-2.0"
_TASKS = {
    "template": "write a function that is generic over all number types|restrict a generic parameter to types that can be "
    "compared|check at compile time that a type has a certain method|overload an operator for my own type|compute a table at "
    "compile time|specialise a generic class for one type|pass any number of arguments of different types|"
    "understand why type inference picks the wrong overload|avoid code bloat from generic code",
    "stl": "remove duplicates from a list and keep the order|split a string at commas|sort objects by two fields|look up a key "
    "in a map without inserting it|reverse a string that contains accents|format a number with two decimals|iterate over a "
    "dictionary while deleting from it|parse a date and add three days|join a list of words with a separator|copy only the "
    "elements that match a condition|walk all files of a folder",
    "algo": "find the shortest path in a grid with obstacles|detect a cycle in a linked list|solve the knapsack problem with "
    "dynamic programming|generate all permutations of a word|find the k largest numbers of a stream|check whether brackets are "
    "balanced|compute the edit distance of two words|implement a trie with prefix search|merge overlapping intervals|count "
    "inversions faster than quadratic time|write a recursive fibonacci with memoisation",
    "memory": "avoid copying a large object when I return it|make sure that a resource is released when an error occurs|break a "
    "reference cycle between two objects|copy an object deeply|understand why my object is destroyed too early|find out how "
    "much memory an object needs|share one object between several owners|make a class that cannot be copied|call the method of "
    "the base class from a derived class|throw and catch an error of my own type",
    "concurrency": "run two tasks in parallel and wait for both|protect a counter that several threads change|avoid a deadlock "
    "with two locks|implement a queue for one producer and many consumers|cancel a background task|use a pool of worker "
    "threads|wait for a result with a timeout|decide between async functions and threads|update a value atomically",
    "systems": "read a large file without loading it into memory|start a child process and capture its output|listen on a TCP "
    "port and answer each client|handle SIGTERM so that my program shuts down cleanly|share memory between two processes|watch a "
    "directory for changes|open a serial port and read bytes|send a UDP broadcast|measure cache misses of a loop",
    "build": "add a third-party library to my project|build the same project on Linux and Windows|fix a missing dependency when "
    "I build|speed up a slow build|make a static and a shared version of my library|set compiler flags for a release build|cross "
    "compile for a Raspberry Pi|run my tests in continuous integration|pin the version of a package",
    "debug": "find out why my program crashes at exit|step through a loop in the debugger|fix a function that returns the wrong "
    "sum|find the line that leaks memory|read this stack trace|understand why my recursion never ends|fix an index that is out of "
    "range|find out why the output is empty|fix this syntax error",
}
_OTHERS = [
    "Python",
    "Java",
    "JavaScript",
    "TypeScript",
    "C#",
    "Go",
    "Golang",
    "Rust",
    "Swift",
    "Kotlin",
    "Ruby",
    "PHP",
    "Perl",
    "Haskell",
    "Scala",
    "Erlang",
    "Elixir",
    "Clojure",
    "Lua",
    "R",
    "MATLAB",
    "Octave",
    "Julia",
    "Fortran",
    "Ada",
    "COBOL",
    "Pascal",
    "Delphi",
    "D",
    "Nim",
    "Zig",
    "Dart",
    "Flutter",
    "F#",
    "OCaml",
    "Prolog",
    "Lisp",
    "Scheme",
    "Racket",
    "Bash",
    "PowerShell",
    "awk",
    "sed",
    "SQL",
    "PostgreSQL",
    "MySQL",
    "SQLite",
    "MongoDB",
    "Redis",
    "Excel",
    "VBA",
    "HTML",
    "CSS",
    "React",
    "Angular",
    "Vue",
    "Node.js",
    "Django",
    "Flask",
    "Rails",
    "Spring Boot",
    "Laravel",
    "jQuery",
    "Android",
    "SwiftUI",
    "Unity with C#",
    "Objective-C",
    "Groovy",
    "Visual Basic",
    "SAS",
    "Stata",
    "LaTeX",
    "git",
    "Docker",
    "Kubernetes",
    "Terraform",
    "Ansible",
    "pandas",
    "NumPy",
    "TensorFlow",
    "asyncio",
    "Tcl",
    "Smalltalk",
    "Crystal",
    "Solidity",
    "ABAP",
    "APL",
    "Verilog",
    "VHDL",
]
_OURS = ("C++", "C++", "C++", "C++17", "C++20", "modern C++", "cpp", "C", "C", "plain C")
_FRAMES = (
    "How do I {t} in {l}?", "In {l}, how can I {t}?", "{l}: {t}", "What is the best way to {t} in {l}?", "I want to {t} ({l})",
    "I use {l} and need to {t}. What do you recommend?", "Show me how to {t} using {l}.", "how to {t} {l}",
    "I am writing a {l} program. I have to {t}, but my attempt does not work as I expected. How is it done?",
    "Is there an idiomatic way in {l} to {t}?", "My {l} code should {t}. Can you help?", "{l} - {t}?",
    "Coming from {o}, how do I {t} in {l}?", "I know how to {t} in {o}, but not in {l}. What is the equivalent?",
)  # fmt: skip
_NUM_OURS, _NUM_OTHERS = 4, 4


def pairs() -> Iterator[LabelledPrompt]:
    random = Random("pairs")
    for label, tasks in _TASKS.items():
        for task in tasks.split("|"):
            for number in range(_NUM_OURS + _NUM_OTHERS):
                is_ours = number < _NUM_OURS
                language = random.choice(_OURS) if is_ours else random.choice(_OTHERS)
                other = random.choice(_OTHERS) if is_ours else random.choice((*_OURS, *_OTHERS))
                frame = random.choice(_FRAMES)
                text = frame.replace("{t}", task).replace("{l}", language).replace("{o}", other)
                yield LabelledPrompt(text, label if is_ours else REJECT, "pairs", _LICENCE, is_prompt=False)


_TONGUES = {
    "template": """\
Почему компилятор не может вывести аргумент шаблона в этой функции?|Как ограничить параметр шаблона с помощью концептов C++20?
Что такое SFINAE и когда его использовать?|Как сделать частичную специализацию шаблона класса?|Зачем нужен typename перед зависимым именем?
Как перегрузить оператор сложения для своего класса в C++?|Чем constexpr отличается от const в C++?
为什么编译器无法推导这个函数模板的参数?|如何用 C++20 的概念约束模板参数?|什么是 SFINAE,什么时候用?|如何对类模板做偏特化?
为什么依赖名字前面需要写 typename?|C++ 中 constexpr 和 const 有什么区别?|可变参数模板怎么展开参数包?|如何重载运算符?
Warum kann der Compiler das Template-Argument nicht ableiten?|Wie schränke ich einen Template-Parameter mit Concepts ein?
Was ist SFINAE und wann brauche ich es?|Wie spezialisiere ich eine Klassenvorlage teilweise?|Wozu dient decltype(auto) als Rückgabetyp?
¿Por qué el compilador no deduce el argumento de la plantilla?|¿Cómo restrinjo un parámetro de plantilla con conceptos?""",
    "stl": """\
Как удалить элементы из std::map во время обхода?|Как отсортировать вектор структур по двум полям?|Чем std::vector отличается от std::list?
Как разбить строку по пробелам в C++?|Почему итератор становится недействительным после push_back?|Как прочитать файл построчно через ifstream?
Как вывести число с двумя знаками после запятой?|Как найти элемент в контейнере по условию?|Как объединить две строки в C++?
如何在遍历 std::map 时删除元素?|如何按两个字段对 vector 排序?|vector 和 list 有什么区别?|C++ 怎么按空格分割字符串?|push_back 之后迭代器为什么失效?
怎么用 ifstream 逐行读取文件?|如何在容器中查找满足条件的元素?|unordered_map 的哈希函数怎么自定义?|lambda 表达式怎么捕获变量?
Wie lösche ich Elemente aus einer std::map während der Iteration?|Wie sortiere ich einen Vektor nach zwei Feldern?
Wann nehme ich vector und wann list?|Wie teile ich eine Zeichenkette an Leerzeichen?|Warum wird der Iterator nach push_back ungültig?
¿Cómo borro elementos de un std::map mientras lo recorro?|¿Cómo ordeno un vector por dos campos?|¿Cómo separo una cadena por espacios en C++?""",
    "algo": """\
Напишите на C++ алгоритм Дейкстры с очередью с приоритетом.|Какова сложность быстрой сортировки в худшем случае?
Как найти самую длинную возрастающую подпоследовательность?|Реализуйте двоичный поиск на C++.|Как обнаружить цикл в связном списке?
Задача о рюкзаке динамическим программированием на C++|Как обойти граф в ширину?|Напишите функцию, которая проверяет, является ли число простым
用 C++ 写带优先队列的 Dijkstra 算法|快速排序最坏情况的时间复杂度是多少?|如何求最长递增子序列?|实现二分查找|如何检测链表中的环?
用动态规划解决背包问题|图的广度优先搜索怎么写?|写一个函数判断一个数是不是素数|如何反转二叉树?
Schreibe Dijkstra mit einer Prioritätswarteschlange in C++.|Wie komplex ist Quicksort im schlechtesten Fall?
Wie finde ich die längste aufsteigende Teilfolge?|Implementiere eine binäre Suche in C++.|Wie erkenne ich einen Zyklus in einer Liste?
Escribe el algoritmo de Dijkstra en C++.|¿Cuál es la complejidad de quicksort?|Implementa una búsqueda binaria en C++.""",
    "memory": """\
Чем unique_ptr отличается от shared_ptr?|Когда вызывается деструктор временного объекта?|Как работает семантика перемещения?
Зачем нужен виртуальный деструктор?|Как избежать утечки памяти при исключении?|Что такое правило пяти в C++?|Почему нельзя вернуть ссылку на локальную переменную?
Как передать владение указателем в функцию?|Что делает static_cast и чем он отличается от reinterpret_cast?
unique_ptr 和 shared_ptr 有什么区别?|临时对象的析构函数什么时候调用?|移动语义是怎么工作的?|为什么基类需要虚析构函数?|抛出异常时如何避免内存泄漏?
什么是三五法则?|为什么不能返回局部变量的引用?|如何把指针的所有权传给函数?|拷贝构造函数什么时候被调用?|虚函数表是什么?
Was unterscheidet unique_ptr von shared_ptr?|Wann wird der Destruktor eines temporären Objekts aufgerufen?|Wie funktioniert die Move-Semantik?
Wozu brauche ich einen virtuellen Destruktor?|Wie vermeide ich Speicherlecks bei Ausnahmen?|Was besagt die Fünferregel?
¿Qué diferencia hay entre unique_ptr y shared_ptr?|¿Cuándo se llama al destructor de un objeto temporal?|¿Cómo funciona la semántica de movimiento?""",
    "concurrency": """\
Как защитить общий счётчик мьютексом?|Почему возникает взаимная блокировка с двумя мьютексами?|Чем memory_order_acquire отличается от seq_cst?
Как дождаться завершения нескольких потоков?|Как правильно использовать condition_variable?|Что такое гонка данных?|Как работает co_await в C++20?
Как написать потокобезопасную очередь?|Что возвращает std::async и когда блокируется future?
如何用互斥锁保护共享计数器?|两个互斥锁为什么会死锁?|memory_order_acquire 和 seq_cst 有什么区别?|如何等待多个线程结束?|怎样正确使用条件变量?
什么是数据竞争?|C++20 的 co_await 怎么工作?|如何写线程安全的队列?|std::async 返回的 future 什么时候阻塞?|原子操作比锁快吗?
Wie schütze ich einen gemeinsamen Zähler mit einem Mutex?|Warum entsteht eine Verklemmung mit zwei Sperren?|Wie warte ich auf mehrere Threads?
Wie benutze ich eine Bedingungsvariable richtig?|Was ist ein Wettlauf um Daten?|Wie schreibe ich eine threadsichere Warteschlange?
¿Cómo protejo un contador compartido con un mutex?|¿Cómo espero a que terminen varios hilos?|¿Por qué se produce un interbloqueo?""",
    "systems": """\
Как отобразить файл в память через mmap?|Как сделать сокет неблокирующим и использовать epoll?|Почему read возвращает меньше байтов, чем я просил?
Как обработать сигнал SIGINT в программе на C?|Как запустить дочерний процесс через fork и exec?|Как открыть последовательный порт в Linux?
Чем pipe отличается от сокета?|Как выровнять данные по кэш-линии?|Как написать TCP сервер на C++?
如何用 mmap 把文件映射到内存?|怎么把套接字设为非阻塞并使用 epoll?|read 为什么返回的字节比请求的少?|如何在 C 程序里处理 SIGINT 信号?
怎么用 fork 和 exec 启动子进程?|Linux 下如何打开串口?|如何用 C++ 写 TCP 服务器?|怎么用 SIMD 指令加速循环?|如何减少缓存未命中?
Wie blende ich eine Datei mit mmap in den Speicher ein?|Wie mache ich einen Socket nicht blockierend und benutze epoll?
Wie behandle ich SIGINT in einem C-Programm?|Wie starte ich einen Kindprozess mit fork und exec?|Wie öffne ich eine serielle Schnittstelle unter Linux?
¿Cómo asigno un archivo a memoria con mmap?|¿Cómo manejo la señal SIGINT en C?|¿Cómo escribo un servidor TCP en C++?""",
    "build": """\
CMake не находит библиотеку, хотя она установлена.|Как подключить статическую библиотеку в CMake?|Ошибка компоновщика: неопределённая ссылка на функцию
Как собрать проект под Windows из Linux?|Где компилятор ищет заголовочные файлы?|Как включить LTO в сборке?|Как написать Makefile для нескольких файлов?
Не найден заголовочный файл при компиляции, что делать?|Как установить зависимости через Conan или vcpkg?
CMake 找不到已经安装的库|如何在 CMake 里链接静态库?|链接错误:未定义的引用|怎么在 Linux 上交叉编译 Windows 程序?|编译器在哪里找头文件?
怎么写多个源文件的 Makefile?|编译时找不到头文件怎么办?|如何用 vcpkg 安装依赖?|怎么打开链接时优化?|动态库和静态库怎么选?
CMake findet die installierte Bibliothek nicht.|Wie binde ich eine statische Bibliothek in CMake ein?|Linkerfehler: nicht definierter Verweis
Wo sucht der Compiler nach Header-Dateien?|Wie schreibe ich ein Makefile für mehrere Dateien?|Wie aktiviere ich LTO beim Übersetzen?
CMake no encuentra la biblioteca instalada.|¿Cómo enlazo una biblioteca estática en CMake?|error del enlazador: referencia sin definir""",
    "debug": """\
Программа падает с ошибкой сегментации, как найти причину?|Почему эта функция на C++ возвращает неправильный результат?|Как читать вывод Valgrind?
Что означает отчёт AddressSanitizer heap-use-after-free?|Как поставить точку останова по условию в gdb?|Почему мой цикл не заканчивается?
Помогите найти ошибку в этом коде на C++|Программа работает в отладке, но падает в релизе|Почему выводится мусор вместо числа?
程序出现段错误,怎么找原因?|为什么这个 C++ 函数返回错误的结果?|怎么看 Valgrind 的输出?|AddressSanitizer 报告 heap-use-after-free 是什么意思?
gdb 怎么设置条件断点?|我的循环为什么停不下来?|帮我找出这段 C++ 代码的错误|调试版正常,发布版崩溃|为什么输出的是乱码而不是数字?
Das Programm stürzt mit einem Speicherzugriffsfehler ab.|Warum liefert diese C++-Funktion ein falsches Ergebnis?|Wie lese ich die Ausgabe von Valgrind?
Wie setze ich in gdb einen bedingten Haltepunkt?|Warum endet meine Schleife nicht?|Hilf mir, den Fehler in diesem C++-Code zu finden
El programa falla con una violación de segmento.|¿Por qué esta función de C++ devuelve un resultado incorrecto?|Ayúdame a encontrar el error en este código C++""",
    REJECT: """\
Как отсортировать список в Python?|Как сделать запрос к базе данных в Java?|Чем let отличается от var в JavaScript?|Какая завтра погода?
Как удалить ветку в git?|Напиши стихотворение о весне|Как центрировать блок в CSS?|Почему мой код на Python выдаёт IndexError?|Как работают горутины в Go?
Переведи это предложение на английский|Сколько калорий в яблоке?|Как объединить таблицы в SQL?|Что такое владение в Rust?|Как настроить nginx?
Python 怎么对列表排序?|Java 怎么连接数据库?|JavaScript 里 let 和 var 有什么区别?|明天天气怎么样?|git 怎么删除分支?|写一首关于春天的诗
CSS 怎么让元素居中?|我的 Python 代码为什么报 IndexError?|Go 的协程怎么工作?|把这句话翻译成英文|推荐一部好看的电影|SQL 怎么连接两个表?|Rust 的所有权是什么?
Wie sortiere ich eine Liste in Python?|Wie verbinde ich Java mit einer Datenbank?|Was unterscheidet let von var in JavaScript?|Wie wird das Wetter morgen?
Wie lösche ich einen Branch in git?|Schreibe ein Gedicht über den Frühling|Wie zentriere ich ein Element in CSS?|Wie funktionieren Goroutinen in Go?
Übersetze diesen Satz ins Englische|Wie verknüpfe ich zwei Tabellen in SQL?|Empfiehl mir ein gutes Kochrezept|Was bedeutet Ownership in Rust?
¿Cómo ordeno una lista en Python?|¿Qué tiempo hará mañana?|Escribe un poema sobre la primavera|¿Cómo uno dos tablas en SQL?|¿Cómo funciona el ownership en Rust?""",
}  # fmt: skip
"""Questions by label, in Russian, Chinese, German and Spanish."""


def tongues() -> Iterator[LabelledPrompt]:
    for label, text in _TONGUES.items():
        for line in text.splitlines():
            for question in line.split("|"):
                yield LabelledPrompt(question.strip(), label, "tongues", _LICENCE)


def main(folder: str) -> None:
    write_records(Path(folder, "pairs.jsonl"), pairs())
    write_records(Path(folder, "tongues.jsonl"), tongues())


if __name__ == "__main__":
    main(*sys.argv[1:])
